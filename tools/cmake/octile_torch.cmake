# octile_find_torch(<prefix> <python>) sets <prefix>_DIR to the folder of the PyTorch that this Python would import,
# and <prefix>_ENVIRONMENT to the environment that it is in. PyTorch itself is not imported.
function(octile_find_torch prefix python)
  execute_process(
    COMMAND ${python} -c
            "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
    OUTPUT_VARIABLE directory OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_VARIABLE trouble RESULT_VARIABLE failed)
  if(failed OR NOT EXISTS ${directory}/include/torch/csrc/stable/library.h)
    message(FATAL_ERROR "No PyTorch with the headers of its stable ABI (2.10 or newer) for ${python}: "
                        "'${directory}' ${trouble}")
  endif()
  get_filename_component(environment ${directory}/../../../.. ABSOLUTE)
  set(${prefix}_DIR ${directory} PARENT_SCOPE)
  set(${prefix}_ENVIRONMENT ${environment} PARENT_SCOPE)
endfunction()
