# Flags for all of our targets, and the functions that declare them.
#
#   dynatrain_library(vps SOURCES box.cc HEADERS box.h DEPS dynatrain_base [TORCH] [INSTALL])
#   dynatrain_test(vps_test SOURCES box_test.cc DEPS dynatrain_vps [LABELS fast|slow|gpu]
#                  [TIMEOUT 180] [PROCESSORS 1] [ARGS ...] [TORCH])
#   dynatrain_binary(dynatrain SOURCES main.cc DEPS dynatrain_trainer [TORCH])
#   dynatrain_fuzz(layout_spec DEPS dynatrain_vps)
#   dynatrain_benchmark(vps_bench SOURCES vps_bench.cc DEPS dynatrain_vps)
#   dynatrain_script_test(name COMMAND script.py args... [LABELS ...] [TIMEOUT ...] [PROCESSORS ...])
#
# INSTALL makes the folder part of what `cmake --install` and find_package(DynaTrain) give.
# DEPS are targets of ours, dynatrain_httplib, or plain library names (xxhash, rapidcheck). HEADERS
# are the folder's public headers; private ones go to SOURCES. TORCH adds libtorch, whose own fmt
# headers then come before Debian's: fmt types must not be in the signature of a non-inline function.
include(GNUInstallDirs)
enable_testing()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)

# Asserts stay on in every build type.
set(CMAKE_CXX_FLAGS_RELEASE "-O2")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g")
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()

find_package(Threads REQUIRED)
find_package(GTest REQUIRED)

# No contraction: the optimizer and the digests give the same bits on every machine.
add_compile_options(-ffp-contract=off -fPIC)
add_compile_definitions(FMT_HEADER_ONLY=1)
if(DYNATRAIN_MARCH)
  add_compile_options(-march=${DYNATRAIN_MARCH})
endif()
option(DYNATRAIN_FUZZ "Build libFuzzer programs instead of replaying their corpora; needs clang" OFF)
if(DYNATRAIN_FUZZ)
  add_compile_options(-O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
  add_link_options(-fsanitize=address,undefined)
endif()
if(DYNATRAIN_SANITIZE)
  # gcc 12 sees uninitialized values in what the sanitizers add.
  add_compile_options(-O1 -fsanitize=${DYNATRAIN_SANITIZE} -fno-sanitize-recover=all -Wno-maybe-uninitialized
                      -fno-omit-frame-pointer)
  add_compile_definitions(_GLIBCXX_ASSERTIONS)
  add_link_options(-fsanitize=${DYNATRAIN_SANITIZE})
endif()

# Paths are hashed relative to the source tree: clones and build folders share the cache.
find_program(DYNATRAIN_CCACHE ccache)
if(DYNATRAIN_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_PCH_EXTSUM=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${DYNATRAIN_CCACHE})
endif()
find_program(DYNATRAIN_MOLD mold)
if(DYNATRAIN_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# Debian builds cpp-httplib as a library; its classes' layout hangs on the macros it was built with,
# which only its .pc file tells.
find_library(DYNATRAIN_HTTPLIB cpp-httplib)
if(DYNATRAIN_HTTPLIB)
  get_filename_component(httplib_dir ${DYNATRAIN_HTTPLIB} DIRECTORY)
  file(STRINGS ${httplib_dir}/pkgconfig/cpp-httplib.pc httplib_flags REGEX "^Cflags")
  string(REGEX MATCHALL "-D[A-Z_]+" httplib_flags "${httplib_flags}")
  add_library(dynatrain_httplib INTERFACE IMPORTED)
  target_compile_options(dynatrain_httplib INTERFACE ${httplib_flags})
  target_link_libraries(dynatrain_httplib INTERFACE ${DYNATRAIN_HTTPLIB})
endif()

if(DYNATRAIN_WITH_TORCH)
  include(DynatrainTorch)
endif()

# ThreadSanitizer of gcc 12 cannot map its shadow under 32 bits of address randomization.
set(DYNATRAIN_TEST_LAUNCHER "")
if(DYNATRAIN_SANITIZE MATCHES "thread" AND EXISTS /proc/sys/vm/mmap_rnd_bits)
  file(STRINGS /proc/sys/vm/mmap_rnd_bits rnd_bits)
  if(rnd_bits GREATER 28)
    execute_process(COMMAND setarch -R true RESULT_VARIABLE setarch_rc OUTPUT_QUIET ERROR_QUIET)
    if(setarch_rc EQUAL 0)
      set(DYNATRAIN_TEST_LAUNCHER setarch -R)
    endif()
  endif()
endif()

function(_dynatrain_own_flags target)
  if(NOT DYNATRAIN_FUZZ)
    target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wconversion -Werror)
  endif()
  target_link_libraries(${target} PRIVATE Threads::Threads)
endfunction()

function(_dynatrain_test_properties name labels timeout processors)
  if(NOT labels)
    set(labels fast)
  endif()
  if(NOT timeout)
    set(timeout 180)
  endif()
  if(NOT processors)
    set(processors 1)
  endif()
  set(environment OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo)
  if(DYNATRAIN_SANITIZE MATCHES "thread")
    list(APPEND environment TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1)
  elseif(DYNATRAIN_SANITIZE)
    list(APPEND environment UBSAN_OPTIONS=print_stacktrace=1 ASAN_OPTIONS=detect_stack_use_after_return=1)
  endif()
  if(DYNATRAIN_SANITIZE)
    math(EXPR timeout "${timeout} * 5")
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT ${timeout}
                       PROCESSORS ${processors} ENVIRONMENT "${environment}")
endfunction()

function(dynatrain_library folder)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH;INSTALL" "" "SOURCES;HEADERS;DEPS")
  set(target dynatrain_${folder})
  if(arg_SOURCES)
    add_library(${target} STATIC ${arg_SOURCES})
    set(scope PUBLIC)
    _dynatrain_own_flags(${target})
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_sources(${target} ${scope} FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/src
                 FILES ${arg_HEADERS})
  target_link_libraries(${target} ${scope} ${arg_DEPS})
  if(arg_TORCH)
    target_link_libraries(${target} ${scope} dynatrain_torch)
    dynatrain_use_torch_pch(${target})
  endif()
  if(arg_INSTALL)
    set_target_properties(${target} PROPERTIES EXPORT_NAME ${folder})
    install(TARGETS ${target} EXPORT DynaTrain ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
            FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  endif()
endfunction()

# find_package(DynaTrain) for what is installed: targets DynaTrain::<folder>.
function(dynatrain_install_package)
  set(where ${CMAKE_INSTALL_LIBDIR}/cmake/DynaTrain)
  install(EXPORT DynaTrain NAMESPACE DynaTrain:: DESTINATION ${where})
  include(CMakePackageConfigHelpers)
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/DynaTrainConfig.cmake.in
                                ${PROJECT_BINARY_DIR}/DynaTrainConfig.cmake
                                INSTALL_DESTINATION ${where})
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/DynaTrainConfigVersion.cmake
                                   COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/DynaTrainConfig.cmake
                ${PROJECT_BINARY_DIR}/DynaTrainConfigVersion.cmake
                ${PROJECT_SOURCE_DIR}/cmake/DynatrainTorchTarget.cmake
          DESTINATION ${where})
endfunction()

function(dynatrain_binary name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH" "" "SOURCES;DEPS")
  add_executable(${name} ${arg_SOURCES})
  _dynatrain_own_flags(${name})
  target_link_libraries(${name} PRIVATE ${arg_DEPS})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  if(arg_TORCH)
    target_link_libraries(${name} PRIVATE dynatrain_torch)
    dynatrain_use_torch_pch(${name})
  endif()
  install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()

function(dynatrain_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH" "TIMEOUT;PROCESSORS" "SOURCES;DEPS;LABELS;ARGS")
  add_executable(${name} ${arg_SOURCES})
  _dynatrain_own_flags(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${name} PRIVATE ${arg_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  if(arg_TORCH)
    target_link_libraries(${name} PRIVATE dynatrain_torch)
    dynatrain_use_torch_pch(${name})
  endif()
  add_test(NAME ${name} COMMAND ${DYNATRAIN_TEST_LAUNCHER} $<TARGET_FILE:${name}> ${arg_ARGS})
  _dynatrain_test_properties(${name} "${arg_LABELS}" "${arg_TIMEOUT}" "${arg_PROCESSORS}")
endfunction()

# A google-benchmark program; its main comes with the library. No test: figures are no assertions.
function(dynatrain_benchmark name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPS")
  find_package(benchmark REQUIRED)
  add_executable(${name} ${arg_SOURCES})
  _dynatrain_own_flags(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${name} PRIVATE ${arg_DEPS} benchmark::benchmark_main)
endfunction()

# A parser fed with any bytes: NAME_fuzz.cc defines LLVMFuzzerTestOneInput, fuzz_corpus/NAME holds
# inputs. By default a test that replays the corpus; with DYNATRAIN_FUZZ a libFuzzer program.
function(dynatrain_fuzz name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "DEPS")
  set(corpus ${CMAKE_CURRENT_SOURCE_DIR}/fuzz_corpus/${name})
  if(DYNATRAIN_FUZZ)
    add_executable(${name}_fuzz ${name}_fuzz.cc)
    target_include_directories(${name}_fuzz PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(${name}_fuzz PRIVATE ${arg_DEPS} Threads::Threads)
    target_link_options(${name}_fuzz PRIVATE -fsanitize=fuzzer)
    set_target_properties(${name}_fuzz PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz)
    return()
  endif()
  add_executable(${name}_replay ${name}_fuzz.cc ${PROJECT_SOURCE_DIR}/src/dynatrain/base/fuzz_replay.cc)
  _dynatrain_own_flags(${name}_replay)
  target_include_directories(${name}_replay PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${name}_replay PRIVATE ${arg_DEPS})
  set_target_properties(${name}_replay PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_test(NAME ${name}_corpus COMMAND ${DYNATRAIN_TEST_LAUNCHER} $<TARGET_FILE:${name}_replay> ${corpus})
  _dynatrain_test_properties(${name}_corpus fast 60 1)
endfunction()

# A Python script as a test, run with the project's .venv where there is one.
function(dynatrain_script_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT;PROCESSORS" "COMMAND;LABELS")
  set(python ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  if(NOT EXISTS ${python})
    find_program(DYNATRAIN_PYTHON NAMES python3 REQUIRED)
    set(python ${DYNATRAIN_PYTHON})
  endif()
  add_test(NAME ${name} COMMAND ${python} ${arg_COMMAND})
  _dynatrain_test_properties(${name} "${arg_LABELS}" "${arg_TIMEOUT}" "${arg_PROCESSORS}")
endfunction()
