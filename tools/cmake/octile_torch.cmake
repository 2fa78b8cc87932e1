set(OCTILE_TORCH_OLDEST 2.10)  # the first with all of the stable ABI that the operators use

# octile_find_torch(<prefix> <python>) sets <prefix>_DIR to the folder of the PyTorch that this Python would import,
# and <prefix>_ENVIRONMENT to the environment that it is in. Fails if there is none, or one that is too old. PyTorch
# itself is not imported.
function(octile_find_torch prefix python)
  execute_process(
    COMMAND ${python} -c
            "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
    OUTPUT_VARIABLE directory OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_VARIABLE trouble RESULT_VARIABLE failed)
  set(wanted "The operators need PyTorch ${OCTILE_TORCH_OLDEST} or newer: `pip install \"torch>=${OCTILE_TORCH_OLDEST}\"`, "
             "or leave out --no-build-isolation.")
  if(failed OR NOT directory)
    message(FATAL_ERROR "${python} finds no PyTorch. " ${wanted} " ${trouble}")
  endif()
  set(line "")
  if(EXISTS ${directory}/version.py)
    file(STRINGS ${directory}/version.py line REGEX "^__version__ *=" LIMIT_COUNT 1)
  endif()
  string(REGEX MATCH "[0-9]+[.][0-9]+[0-9.]*" version "${line}")
  if(NOT version OR version VERSION_LESS OCTILE_TORCH_OLDEST)
    message(FATAL_ERROR "The PyTorch in ${directory} has version \"${version}\". " ${wanted})
  endif()
  if(NOT EXISTS ${directory}/include/torch/csrc/stable/library.h)
    message(FATAL_ERROR "PyTorch ${version} in ${directory} has no headers of its stable ABI "
                        "(include/torch/csrc/stable). " ${wanted})
  endif()
  get_filename_component(environment ${directory}/../../../.. ABSOLUTE)
  set(${prefix}_DIR ${directory} PARENT_SCOPE)
  set(${prefix}_ENVIRONMENT ${environment} PARENT_SCOPE)
endfunction()

# Run as a script, it looks for the PyTorch of -DPYTHON=<python> and prints its folder.
if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  octile_find_torch(found ${PYTHON})
  message(STATUS "PyTorch: ${found_DIR}")
endif()
