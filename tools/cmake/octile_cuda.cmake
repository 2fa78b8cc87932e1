# Finds the CUDA headers and NVRTC of this build. CMakeLists.txt includes this file, and tools/setup.sh runs
# it as `cmake -P` to learn whether it must install anything.
#
# Only <cuda.h> and <nvrtc.h> are needed, and only for their types: libcuda.so.1 and NVRTC are opened at run
# time. An installed toolkit comes first, because it is known to match the machine's driver. The wheels of
# tools/requirements/cuda.txt come second.
set(OCTILE_CUDA_OLDEST 12080)  # 12.8 in the form of CUDA_VERSION

# octile_find_cuda(<prefix> <wheel environment>) sets <prefix>_INCLUDE_DIR, <prefix>_NVRTC_DIR and
# <prefix>_VERSION, or leaves them empty and says in <prefix>_TRIED why each place is unsuitable.
function(octile_find_cuda prefix venv)
  file(GLOB wheels ${venv}/lib/python3*/site-packages/nvidia/cu1*)
  set(tried "")
  foreach(root IN ITEMS $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda ${wheels})
    if(NOT EXISTS ${root}/include/cuda.h OR NOT EXISTS ${root}/include/nvrtc.h)
      string(APPEND tried "\n  ${root}: include/cuda.h or include/nvrtc.h is missing")
      continue()
    endif()
    file(STRINGS ${root}/include/cuda.h line REGEX "^#define CUDA_VERSION [0-9]+")
    string(REGEX MATCH "[0-9]+" version "${line}")
    if(version LESS OCTILE_CUDA_OLDEST)
      string(APPEND tried "\n  ${root}: CUDA_VERSION is ${version}, needed is ${OCTILE_CUDA_OLDEST} (12.8)")
      continue()
    endif()
    file(GLOB nvrtc ${root}/lib64/libnvrtc.so.* ${root}/lib/libnvrtc.so.*)
    if(NOT nvrtc)
      string(APPEND tried "\n  ${root}: lib64/libnvrtc.so.* is missing")
      continue()
    endif()
    list(GET nvrtc 0 first)
    get_filename_component(directory ${first} DIRECTORY)
    set(${prefix}_INCLUDE_DIR ${root}/include PARENT_SCOPE)
    set(${prefix}_NVRTC_DIR ${directory} PARENT_SCOPE)
    set(${prefix}_VERSION ${version} PARENT_SCOPE)
    return()
  endforeach()
  foreach(name INCLUDE_DIR NVRTC_DIR VERSION)
    set(${prefix}_${name} "" PARENT_SCOPE)
  endforeach()
  set(${prefix}_TRIED "${tried}" PARENT_SCOPE)
endfunction()

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  octile_find_cuda(found ${OCTILE_VENV})
  if(NOT found_INCLUDE_DIR)
    message(FATAL_ERROR "no CUDA headers with NVRTC:${found_TRIED}")
  endif()
endif()
