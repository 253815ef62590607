// SPDX-License-Identifier: Apache-2.0
#include "tests/ops/declared_functions.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace moegrad::test {
namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// Blanks comments, literals and directives.
std::string bare(const std::string& source) {
  std::string text;
  bool line_start = true;
  for (std::size_t i = 0; i < source.size();) {
    const auto skip_past = [&](std::string_view end) {
      const auto at = source.find(end, i);
      i = at == std::string::npos ? source.size() : at + end.size();
      text += ' ';
    };
    const char c = source[i];
    if (source.compare(i, 2, "//") == 0 || (line_start && c == '#')) {
      while (i < source.size() && source[i] != '\n') i += source[i] == '\\' ? 2 : 1;
    } else if (source.compare(i, 2, "/*") == 0) {
      skip_past("*/");
    } else if (c == '"' || c == '\'') {
      ++i;
      while (i < source.size() && source[i] != c) i += source[i] == '\\' ? 2 : 1;
      ++i;
      text += ' ';
    } else {
      line_start = c == '\n' || (line_start && std::isspace(static_cast<unsigned char>(c)) != 0);
      text += c;
      ++i;
    }
  }
  return text;
}

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \n\t");
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(" \n\t") - first + 1);
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!is_word(text[i])) continue;
    const auto begin = i;
    while (i < text.size() && is_word(text[i])) ++i;
    words.push_back(text.substr(begin, i - begin));
  }
  return words;
}

// Calls body(c, position) for what is inside no bracket; < and > are brackets too.
template <class Body>
void for_outer_characters(const std::string& text, const Body& body) {
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (depth == 0) body(text[i], i);
    if (std::string_view("(<[{").find(text[i]) != std::string_view::npos) ++depth;
    if (std::string_view(")>]}").find(text[i]) != std::string_view::npos) --depth;
  }
}

// "const std::vector<std::int64_t>& offsets = {}" -> "vector<int64>"
std::string type_of_parameter(std::string text) {
  auto end = text.size();
  for_outer_characters(text, [&](char c, std::size_t i) {
    if (c == '=') end = std::min(end, i);
  });
  text = trimmed(text.substr(0, end));
  auto name = text.size();
  while (name > 0 && is_word(text[name - 1])) --name;
  if (name > 0 && text[name - 1] != ':') text = text.substr(0, name);
  for (const std::string_view dropped : {"const ", "std::", "&", "_t"}) {
    for (auto at = text.find(dropped); at != std::string::npos; at = text.find(dropped)) {
      text.erase(at, dropped.size());
    }
  }
  return trimmed(text);
}

std::string types_of_parameters(const std::string& text) {
  std::vector<std::size_t> commas;
  for_outer_characters(text, [&](char c, std::size_t i) {
    if (c == ',') commas.push_back(i);
  });
  commas.push_back(text.size());
  std::string types;
  std::size_t begin = 0;
  for (const auto comma : commas) {
    types += (begin > 0 ? ", " : "") + type_of_parameter(text.substr(begin, comma - begin));
    begin = comma + 1;
  }
  return types;
}

// Where the parameter list of a declaration opens; npos when it declares no function.
std::size_t parameter_list(const std::string& text) {
  const auto op = text.find("operator");
  if (op != std::string::npos) {
    const auto open = text.find('(', op);
    return text.compare(open, 2, "()") == 0 && trimmed(text.substr(op + 8, open - op - 8)).empty()
               ? open + 2
               : open;
  }
  auto open = std::string::npos, assignment = std::string::npos;
  for_outer_characters(text, [&](char c, std::size_t i) {
    if (c == '(') open = std::min(open, i);
    if (c == '=') assignment = std::min(assignment, i);
  });
  return assignment < open ? std::string::npos : open;
}

void add_declaration(const std::string& statement, const std::string& scope,
                     std::vector<DeclaredFunction>& functions) {
  auto text = trimmed(statement);
  if (text.ends_with("= delete")) return;
  while (text.starts_with("template")) {  // template <...>
    int depth = 0;
    std::size_t i = text.find('<');
    do {
      depth += text[i] == '<' ? 1 : text[i] == '>' ? -1 : 0;
    } while (++i < text.size() && depth > 0);
    text = trimmed(text.substr(i));
  }
  const auto words = words_of(text);
  for (const auto* word :
       {"using", "typedef", "static_assert", "class", "struct", "enum", "union"}) {
    if (!words.empty() && words[0] == word) return;
  }
  const auto open = parameter_list(text);
  if (open == std::string::npos) return;
  const auto head = trimmed(text.substr(0, open));
  const auto op = head.find("operator");
  auto name = op;
  if (op == std::string::npos) {
    name = head.size();
    while (name > 0 && is_word(head[name - 1])) --name;
  }
  int depth = 0;
  auto close = open;
  do {
    depth += text[close] == '(' ? 1 : text[close] == ')' ? -1 : 0;
  } while (depth > 0 && ++close < text.size());
  functions.push_back(
      {scope, head.substr(name), types_of_parameters(text.substr(open + 1, close - open - 1))});
}

}  // namespace

std::vector<DeclaredFunction> declared_functions(const std::string& source) {
  const auto text = bare(source);
  std::vector<DeclaredFunction> functions;
  std::vector<std::string> scopes;
  std::string statement;
  int parentheses = 0, braces = 0;  // braces of what is no namespace
  const auto scope = [&] {
    std::string joined;
    for (const auto& each : scopes) joined += (joined.empty() ? "" : "::") + each;
    return joined;
  };
  for (const char c : text) {
    if (braces > 0) {
      braces += c == '{' ? 1 : c == '}' ? -1 : 0;
      continue;
    }
    parentheses += c == '(' ? 1 : c == ')' ? -1 : 0;
    if (parentheses > 0 || std::string_view("{};").find(c) == std::string_view::npos) {
      statement += c;
      continue;
    }
    const auto words = words_of(statement);
    if (c == '{' && std::ranges::find(words, "namespace") != words.end()) {
      const auto after = trimmed(statement.substr(statement.find("namespace") + 9));
      scopes.push_back(after.empty() ? "(anonymous)" : after);
    } else if (c == '}') {
      scopes.pop_back();
    } else {
      add_declaration(statement, scope(), functions);
      if (c == '{') braces = 1;
    }
    statement.clear();
  }
  return functions;
}

}  // namespace moegrad::test
