# The target dynatrain_torch: headers and libraries of an installed torch, CPU or CUDA build.
#
# TorchConfig.cmake is not used: it probes for MKL and, in CUDA builds, demands a CUDA toolkit that
# code calling only torch's C++ interface does not need.
set(torch_dir ${DYNATRAIN_TORCH_DIR})
if(NOT torch_dir)
  file(GLOB torch_dir ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
endif()
set(torch_hint "run scripts/setup.sh, or name an installed libtorch with -DDYNATRAIN_TORCH_DIR=DIR, \
or configure with -DDYNATRAIN_WITH_TORCH=OFF")
if(NOT torch_dir)
  message(FATAL_ERROR "No torch under ${PROJECT_SOURCE_DIR}/.venv: ${torch_hint}")
endif()
include(DynatrainTorchTarget)
list(APPEND CMAKE_BUILD_RPATH ${torch_dir}/lib)
list(APPEND CMAKE_INSTALL_RPATH ${torch_dir}/lib)
message(STATUS "torch: ${torch_dir}")

# One precompiled header for all targets that use torch: a source costs 3 s instead of 10 s. It is
# made of torch's headers alone, so that only another torch or other flags make it anew.
option(DYNATRAIN_TORCH_PCH "Precompile torch's headers" ON)
if(DYNATRAIN_TORCH_PCH)
  set(pch_headers <torch/types.h> <torch/autograd.h> <torch/csrc/distributed/c10d/Backend.hpp>
      <torch/csrc/distributed/c10d/Store.hpp>)
  file(WRITE ${PROJECT_BINARY_DIR}/torch_pch.cc "")
  add_library(dynatrain_torch_pch OBJECT ${PROJECT_BINARY_DIR}/torch_pch.cc)
  target_link_libraries(dynatrain_torch_pch PRIVATE dynatrain_torch)
  target_precompile_headers(dynatrain_torch_pch PRIVATE ${pch_headers})

  # ccache hashes this in place of the header's half gigabyte.
  file(SHA256 ${torch_dir}/lib/libc10.so torch_build)
  string(SHA256 pch_sum "${torch_build} ${pch_headers} ${CMAKE_CXX_COMPILER_VERSION}
         ${CMAKE_CXX_FLAGS} ${CMAKE_BUILD_TYPE} ${DYNATRAIN_MARCH} ${DYNATRAIN_SANITIZE}")
  file(WRITE ${PROJECT_BINARY_DIR}/CMakeFiles/dynatrain_torch_pch.dir/cmake_pch.hxx.gch.sum
       ${pch_sum})
endif()

function(dynatrain_use_torch_pch target)
  get_target_property(type ${target} TYPE)
  if(DYNATRAIN_TORCH_PCH AND NOT type STREQUAL INTERFACE_LIBRARY)
    target_precompile_headers(${target} REUSE_FROM dynatrain_torch_pch)
  endif()
endfunction()
