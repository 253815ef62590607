// SPDX-License-Identifier: Apache-2.0
#include "train/logs/event_reader.h"

#include <string>
#include <utility>

#include "framework/io/mapped_file.h"
#include "framework/io/utf8.h"
#include "framework/runtime/error.h"
#include "train/logs/tf_record.h"

namespace moegrad::training {

EventFile read_event_file(const std::filesystem::path& path) {
  const MappedFile file(path, "event_reader");
  const auto bytes = file.bytes();
  const auto who = "event_reader: " + path.string();
  TfRecordReader records({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, who);
  EventFile read;
  for (bool first = true;; first = false) {
    const auto place = who + ": record at byte " + std::to_string(records.offset());
    const auto record = records.next();
    if (!record) break;
    auto event = log_event_from_proto(*record, place);
    if (!first) {
      read.events.push_back(std::move(event));
      continue;
    }
    check<ValueError>(event.file_version == kEventFileVersion, who, ": file version must be ",
                      in_quotes(kEventFileVersion), ", got ", in_quotes(event.file_version));
  }
  read.bytes_left_out = bytes.size() - records.offset();
  return read;
}

}  // namespace moegrad::training
