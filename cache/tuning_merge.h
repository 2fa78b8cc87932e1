// Folds files of tuning records into one set. See FORMAT.md section 6.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cache/tuning_record.h"

namespace octile::cache {

// A file of records, by the name that sentences give it.
struct TuningText {
  std::string name;
  std::string text;
};

struct MergedTuning {
  // One line without its newline for each problem, bucket, token count, device and SM count, as the
  // file had it, fields that this version does not know included. Sorted, and of one problem,
  // bucket and device the newest is the last, which is the one that counts.
  std::vector<std::string> lines;
  std::vector<TuningRecord> records;  // those of the lines
  // "b.jsonl:7: other winner than a.jsonl:3, which ...", in the order of names and lines.
  std::vector<std::string> conflicts;
  // "a.jsonl:2: why it is not a record", in the same order.
  std::vector<std::string> bad_lines;

  // Returns the lines, each with its newline.
  std::string text() const;
};

// Merges the files. If lines of one file decide the same, the last counts; among several files that
// with the latest date, at equal dates the greater text. So the lines depend neither on the order
// of the files nor on how often one is given, and merging a result changes nothing. A conflict is a
// decision of two files that differ in the winner's configuration. After kMaxBadLines lines of a
// file that are not records the rest of it is not read.
inline constexpr std::size_t kMaxBadLines = 10'000;
MergedTuning merge_tuning(const std::vector<TuningText>& files);

}  // namespace octile::cache
