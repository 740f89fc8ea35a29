# Makes the imported target dynatrain_torch of the torch in `torch_dir`: the directory of an
# installed libtorch or torch package, CPU or CUDA build. `torch_hint` ends the error messages.
foreach(file include/ATen/ATen.h lib/libtorch.so lib/libtorch_cpu.so lib/libc10.so)
  if(NOT EXISTS ${torch_dir}/${file})
    message(FATAL_ERROR "${torch_dir} is no torch, it lacks ${file}: ${torch_hint}")
  endif()
endforeach()

# c10::Error is built from a std::string; its mangled name tells which ABI the library has.
file(STRINGS ${torch_dir}/lib/libc10.so cxx11_symbols LIMIT_COUNT 1 REGEX "_ZN3c105ErrorC.*__cxx11")
if(NOT cxx11_symbols)
  message(FATAL_ERROR "${torch_dir} is built with the old C++ ABI; a CXX11 ABI build is needed")
endif()

set(torch_libraries ${torch_dir}/lib/libtorch.so ${torch_dir}/lib/libtorch_cpu.so)
foreach(library torch_cuda c10_cuda)
  if(EXISTS ${torch_dir}/lib/lib${library}.so)
    list(APPEND torch_libraries ${torch_dir}/lib/lib${library}.so)
  endif()
endforeach()
list(APPEND torch_libraries ${torch_dir}/lib/libc10.so)

# Kernels register themselves when a library is loaded, so none may be dropped as unused. The CUDA
# libraries that torch needs are found at run time through its own RUNPATH.
list(JOIN torch_libraries "," torch_link_list)
add_library(dynatrain_torch INTERFACE IMPORTED)
target_include_directories(dynatrain_torch INTERFACE
                           ${torch_dir}/include ${torch_dir}/include/torch/csrc/api/include)
target_link_options(dynatrain_torch INTERFACE -Wl,--allow-shlib-undefined)
target_link_libraries(dynatrain_torch INTERFACE
                      "-Wl,--push-state,--no-as-needed,${torch_link_list},--pop-state")
