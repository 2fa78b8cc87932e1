// A kernel of templates/bench: not one that users get, but one to measure or check theirs with.
#pragma once

#include <memory>
#include <string>

#include "generator/prologue.h"
#include "runtime/measure/gpu_session.h"

namespace octile {

// A kernel compiled from a template and loaded; unloaded by its scope.
class LoadedTemplate {
 public:
  static Result<LoadedTemplate> compile(const GpuSession& gpu, const Prologue& prologue,
                                        const std::string& path, const std::string& name);
  ~LoadedTemplate();
  LoadedTemplate(LoadedTemplate&& other) noexcept;
  LoadedTemplate& operator=(LoadedTemplate&&) = delete;
  Status launch(unsigned blocks, unsigned threads, void** parameters, CUstream stream) const;

 private:
  LoadedTemplate(std::shared_ptr<const Driver> driver, CUlibrary library, CUkernel kernel)
      : driver_(std::move(driver)), library_(library), kernel_(kernel) {}
  std::shared_ptr<const Driver> driver_;
  CUlibrary library_ = nullptr;
  CUkernel kernel_ = nullptr;
};

}  // namespace octile
