// Stands in for libcublasLt.so.13: accepts every problem, offers one algorithm and computes
// nothing.
#include <new>

#include "tools/peers/cublaslt_types.h"

namespace lt = octile::tools::lt;

namespace {

// Every handle is an object of its own, so that a leak or a second destroy shows.
lt::StatusCode create(void** handle) {
  *handle = new (std::nothrow) char;
  return lt::kSuccess;
}

lt::StatusCode destroy(void* handle) {
  delete static_cast<char*>(handle);
  return lt::kSuccess;
}

}  // namespace

extern "C" {

std::size_t cublasLtGetVersion() { return 130000; }
const char* cublasLtGetStatusName(lt::StatusCode) { return "CUBLAS_STATUS_SUCCESS"; }
lt::StatusCode cublasLtCreate(lt::Handle* handle) { return create(handle); }
lt::StatusCode cublasLtDestroy(lt::Handle handle) { return destroy(handle); }
lt::StatusCode cublasLtMatmulDescCreate(lt::MatmulDesc* desc, int, int) { return create(desc); }
lt::StatusCode cublasLtMatmulDescDestroy(lt::MatmulDesc desc) { return destroy(desc); }
lt::StatusCode cublasLtMatmulDescSetAttribute(lt::MatmulDesc, int, const void*, std::size_t) {
  return lt::kSuccess;
}
lt::StatusCode cublasLtMatrixLayoutCreate(lt::MatrixLayout* layout, int, std::uint64_t,
                                          std::uint64_t, std::int64_t) {
  return create(layout);
}
lt::StatusCode cublasLtMatrixLayoutDestroy(lt::MatrixLayout layout) { return destroy(layout); }
lt::StatusCode cublasLtMatmulPreferenceCreate(lt::Preference* preference) {
  return create(preference);
}
lt::StatusCode cublasLtMatmulPreferenceDestroy(lt::Preference preference) {
  return destroy(preference);
}
lt::StatusCode cublasLtMatmulPreferenceSetAttribute(lt::Preference, int, const void*, std::size_t) {
  return lt::kSuccess;
}
lt::StatusCode cublasLtMatmulAlgoGetHeuristic(lt::Handle, lt::MatmulDesc, lt::MatrixLayout,
                                              lt::MatrixLayout, lt::MatrixLayout, lt::MatrixLayout,
                                              lt::Preference, int, lt::HeuristicResult* results,
                                              int* found) {
  *results = {};
  *found = 1;
  return lt::kSuccess;
}
lt::StatusCode cublasLtMatmul(lt::Handle, lt::MatmulDesc, const void*, const void*,
                              lt::MatrixLayout, const void*, lt::MatrixLayout, const void*,
                              const void*, lt::MatrixLayout, void*, lt::MatrixLayout,
                              const lt::Algorithm*, void*, std::size_t, CUstream) {
  return lt::kSuccess;
}

}  // extern "C"
