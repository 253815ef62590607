// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "train/data/token_source.h"

namespace moegrad::training {

/// Document d is the tokens [offsets[d], offsets[d + 1]). Every token is in one document;
/// separators are in the document before them. Size [documents + 1], from 0 to the number of
/// tokens.
using DocumentOffsets = std::vector<std::int64_t>;

/// A document begins after one or more blank lines (of spaces, tabs and carriage returns at most).
DocumentOffsets blank_line_documents(std::string_view text);

/// A document begins with each verse 1: `Ge1:1 In the beginning ...`.
DocumentOffsets king_james_chapters(std::string_view text);

/// A document ends with each `end_of_document`. ValueError unless that is the last token.
DocumentOffsets end_token_documents(const TokenSource& tokens, std::int64_t end_of_document);

struct HeldOut {
  DocumentOffsets training = {}, validation = {};
};

/// Holds out the documents that begin in the last twentieth of the tokens. If none begins there,
/// splits the last document and holds out the last twentieth of the tokens.
HeldOut hold_out(const DocumentOffsets& documents);

}  // namespace moegrad::training
