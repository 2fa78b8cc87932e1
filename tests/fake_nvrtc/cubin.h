// A cubin with one kernel and no code: what Octile reads of a cubin is there, and no GPU can run
// it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace octile::fake_nvrtc {

// `kernel` takes one parameter of `parameter_bytes` bytes, or none if that is 0. `code` stands for
// its instructions. The architecture is sm_90, until set_architecture.
std::string make_cubin(std::string_view kernel, std::uint32_t parameter_bytes,
                       std::string_view code);

// Returns the cubin for a source that Octile emitted: its kernel's name is that of the source, its
// parameter has the size that the source asserts, and its code is a digest of the source. Sources
// of benchmarks assert no size, and their kernels have no parameter. Returns four bytes that are
// not a cubin for any other source.
std::string cubin_of(std::string_view source);

// Makes the cubin one for that architecture: 120 is sm_120.
void set_architecture(std::string& cubin, std::uint32_t sm);

// Returns what ptxas would say of that cubin; "" for any other source.
std::string log_of(std::string_view source);

}  // namespace octile::fake_nvrtc
