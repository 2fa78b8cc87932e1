// Files of records: tuning decisions (FORMAT.md section 6) and measurements (docs/records.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cache/tuning_record.h"
#include "generator/core/error.h"
#include "runtime/measure/record.h"

namespace octile::tools {

struct RecordFiles {
  // The last of several decisions for a problem, bucket and device counts.
  std::vector<cache::TuningRecord> tuned;
  std::vector<Record> measured;
};

// Adds the records of a text, one a line of either kind, blank lines aside. Errors:
// kInvalidArgument, which begin with "name:line: ".
Status add_records(std::string_view text, const std::string& name, RecordFiles& files);

// Reads files, which zstd may have compressed, and folders: what record_files_of() lists, else all
// *.jsonl and *.jsonl.zst in the folder.
// Errors: those of add_records(), record_files_of() and InputFile; kInvalidArgument if a file has
// more than 64 MiB.
Result<RecordFiles> read_record_files(const std::vector<std::string>& paths);

// Returns the canonical name of a card by the driver's or the canonical name; a name that is not
// known as it is.
std::string card_of(const std::string& name);

// Returns the cards of all records, each once.
std::vector<std::string> cards_of(const RecordFiles& files);
// Leaves the records of one card.
void keep_card(const std::string& card, RecordFiles& files);

}  // namespace octile::tools
