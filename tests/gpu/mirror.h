// Host memory and its copy on the device.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "runtime/driver/buffer.h"
#include "tests/gpu/session.h"
#include "tests/support/quantize_case.h"

namespace octile::tests {

// Host memory and its copy on the device: pointers into the one become pointers into the other.
class Mirror {
 public:
  void add(void* host, std::size_t bytes) {
    if (bytes == 0) return;
    copies_.push_back({static_cast<char*>(host), bytes, session().allocate(bytes)});
    ASSERT_TRUE(copies_.back().device.upload(host, bytes, session().stream()));
  }
  template <typename T>
  void add(std::vector<T>& values) {
    add(values.data(), values.size() * sizeof(T));
  }
  void add(CaseOutput& output) {
    add(output.q);
    add(output.scale);
  }
  void translate(QuantizeArguments& args) const {
    translate_bytes(args.x);
    translate_bytes(args.fused.x1);
    translate_bytes(args.fused.x2);
    translate(args.fused.row_factor);
    translate_bytes(args.source_scales.x_scale);
    translate_bytes(args.q);
    translate_bytes(args.scale);
    translate_bytes(args.q_transposed);
    translate_bytes(args.scale_transposed);
    translate(args.groups.offsets);
    translate(args.groups.counts);
    translate(args.delayed.encode_scale);
    translate(args.monitor.amax);
    translate(args.monitor.encode_scale);
    translate(args.monitor.nonfinite);
  }
  void fetch() const {
    for (const Copy& copy : copies_) {
      ASSERT_TRUE(copy.device.download(copy.host, copy.bytes, session().stream()));
    }
    session().synchronize();
  }

  template <typename T>
  void translate(T*& pointer) const {
    if (pointer == nullptr) return;
    const auto* p = reinterpret_cast<const char*>(pointer);
    // The end of one copy, which an empty range begins at, may be where another begins.
    for (const std::size_t past_end : {std::size_t{0}, std::size_t{1}}) {
      for (const Copy& copy : copies_) {
        if (p < copy.host || p >= copy.host + copy.bytes + past_end) continue;
        pointer = reinterpret_cast<T*>(static_cast<char*>(copy.device.pointer()) + (p - copy.host));
        return;
      }
    }
    ADD_FAILURE() << "a pointer into nothing that was mirrored";
  }
  template <typename T>
  void translate_bytes(T*& pointer) const {  // void pointers
    auto* p = static_cast<const char*>(pointer);
    translate(p);
    pointer = const_cast<char*>(p);
  }

 private:
  struct Copy {
    char* host = nullptr;
    std::size_t bytes = 0;
    DeviceBuffer device;
  };
  static GpuSession& session() { return *GpuSession::get(); }

  std::vector<Copy> copies_;
};

}  // namespace octile::tests
