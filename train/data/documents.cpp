// SPDX-License-Identifier: Apache-2.0
#include "train/data/documents.h"

#include <algorithm>

#include "framework/runtime/error.h"
#include "train/data/training_data.h"

namespace moegrad::training {
namespace {

constexpr std::size_t kMostDocuments = std::size_t{1} << 26;

void add_document(DocumentOffsets& offsets, std::int64_t offset) {
  check<ValueError>(offsets.size() <= kMostDocuments, "documents: must be at most ", kMostDocuments,
                    ", got more");
  offsets.push_back(offset);
}

// A document begins at the start of the text and at each line for which `begins` is true.
template <class Begins>
DocumentOffsets cut_before_lines(std::string_view text, Begins begins) {
  DocumentOffsets offsets = {0};
  std::size_t next = 0;
  for (std::size_t at = 0; at < text.size(); at = next) {
    next = std::min(text.find('\n', at), text.size() - 1) + 1;
    if (begins(text.substr(at, next - at)) && at > 0) {
      add_document(offsets, static_cast<std::int64_t>(at));
    }
  }
  offsets.push_back(std::ssize(text));
  return offsets;
}

}  // namespace

DocumentOffsets blank_line_documents(std::string_view text) {
  bool any = false, after_blank = false;
  return cut_before_lines(text, [&](std::string_view line) {
    const bool blank = line.find_first_not_of(" \t\r\n") == std::string_view::npos;
    // Blank lines at the start of the text separate no documents.
    const bool begins = any && after_blank && !blank;
    any = any || !blank;
    after_blank = blank;
    return begins;
  });
}

DocumentOffsets king_james_chapters(std::string_view text) {
  return cut_before_lines(
      text, [](std::string_view line) { return line.substr(0, line.find(' ')).ends_with(":1"); });
}

DocumentOffsets end_token_documents(const TokenSource& tokens, std::int64_t end_of_document) {
  const auto size = tokens.size();
  check<ValueError>(tokens[size - 1] == end_of_document, "data: '", tokens.name(),
                    "' must end with the end-of-document id ", end_of_document, ", got ",
                    tokens[size - 1]);
  DocumentOffsets offsets = {0};
  constexpr std::int64_t kBlock = 1 << 20;
  for (std::int64_t at = 0; at < size; at += kBlock) {
    const auto block = tokens.read(at, std::min(kBlock, size - at));
    for (std::size_t i = 0; i < block.size(); ++i) {
      if (block[i] == end_of_document) add_document(offsets, at + static_cast<std::int64_t>(i) + 1);
    }
  }
  return offsets;
}

HeldOut hold_out(const DocumentOffsets& documents) {
  const auto size = documents.back();
  const auto earliest = size - size / kHeldOut;
  const auto found = std::ranges::lower_bound(documents, earliest);
  const auto cut = *found < size ? *found : earliest;
  HeldOut parts{.training = {documents.begin(), found}, .validation = {cut}};
  parts.training.push_back(cut);
  parts.validation.insert(parts.validation.end(), *found == cut ? found + 1 : found,
                          documents.end());
  return parts;
}

}  // namespace moegrad::training
