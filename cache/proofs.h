// Outcomes of known-answer tests on this machine's devices: a file of the writable root's folder
// `proofs` for each device. See FORMAT.md section 9.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "cache/file_ops.h"
#include "cache/memo_file.h"

namespace octile::cache {

// The outcome of one known-answer test on one device.
struct Proof {
  std::string device;  // UUID, 32 hex digits
  std::string driver;  // version of CUDA, file and digest: "13.0 libcuda.so.580.95.05 0f1e..."
  std::string test;    // "matrix unit mma: gemm m=? n=64 ..."
  std::string digest;  // of the test and its kernels
  std::string wrong;   // what is wrong; empty: the device is right
  int sum_bits = 0;    // that a matrix unit was seen to keep of a sum; 0: not read off
  std::string date;    // "2026-11-30T16:10:00Z"
  bool is_right() const { return wrong.empty(); }
  friend bool operator==(const Proof&, const Proof&) = default;
};

std::string to_json_text(const std::vector<Proof>& proofs);
// Returns the proofs. The error names the field that is missing or of another type.
tl::expected<std::vector<Proof>, std::string> parse_proofs(std::string_view text);

// The outcomes on one device. May be used by several threads and processes at once.
class Proofs {
 public:
  // device: its UUID. root or device empty: nothing is kept. file_ops null: the system's.
  Proofs(const std::string& root, const std::string& device,
         std::shared_ptr<FileOps> file_ops = nullptr);

  std::string path() const { return root_.empty() ? "" : file_.path(); }  // empty: nothing is kept

  // Returns all proofs, or an empty list if the file does not exist. Errors: those of
  // MemoFile::read(), and code 0 for a text that parse_proofs() refuses.
  IoResult<std::vector<Proof>> read() const;

  // Adds a proof in place of those of the same device, driver, test and digest. A file that is
  // damaged or refused is replaced. One that cannot be read stays, and is the error. The oldest
  // proofs of the device make room for it, if the file would have more than kMaxMemoBytes. Those
  // who do this at once take turns. Whoever waits for ten seconds, for one that is stopped, does it
  // without a turn: then one may win for both. So it is on a file system without locks.
  IoResult<void> put(const Proof& proof) const;

 private:
  IoResult<void> replace_with(const Proof& proof) const;

  const std::shared_ptr<FileOps> ops_;
  const std::string root_;  // empty: nothing is kept
  const std::string device_;
  const MemoFile file_;
};

}  // namespace octile::cache
