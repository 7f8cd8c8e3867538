# kvilt_module(NAME SOURCES a.cc ... [DEPS module ...] [LIBS target ...] [TESTS a_test.cc ...] [APART b.cc ...])
#   One static library kvilt_NAME for src/NAME, and one test program NAME_test from its TESTS.
#   With KVILT_UNITY the compiler gets several SOURCES (or TESTS) at once, but those in APART one by one: sources that are
#   touched all the time, or whose file-local names another one has too.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
if(KVILT_TESTS)
  enable_testing()
  find_package(GTest REQUIRED)
  include(GoogleTest)
  add_custom_target(kvilt_tests)  # every test program: what the sanitizers' presets build
endif()
find_program(KVILT_CCACHE ccache)
if(KVILT_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${KVILT_CCACHE})
endif()

add_library(kvilt_options INTERFACE)
target_include_directories(kvilt_options INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
# No global -m flags: kernels get theirs per file, so that run-time dispatch stays honest.
target_compile_options(kvilt_options INTERFACE -Wall -Wextra -Werror=switch -Wno-unused-parameter -fno-math-errno -ffp-contract=off)
target_link_libraries(kvilt_options INTERFACE Threads::Threads)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # g++ 12 sees overlaps and uninitialised values in libstdc++'s own strings and variants.
  target_compile_options(kvilt_options INTERFACE -Wno-restrict -Wno-maybe-uninitialized)
endif()
if(KVILT_SANITIZE)
  # Of UBSan's checks, those that AddressSanitizer makes too, or that no code here can break, are a sixth of the compile
  # time; the fuzzers (clang) make them. A target with KVILT_NO_UBSAN has AddressSanitizer alone: a property, since what a
  # target sets for itself comes before what it gets from here, and the last word counts.
  target_compile_options(kvilt_options INTERFACE -fsanitize=${KVILT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  if(NOT KVILT_FUZZ)
    target_compile_options(kvilt_options INTERFACE -fno-sanitize=null,object-size,pointer-overflow,vptr
      $<$<BOOL:$<TARGET_PROPERTY:KVILT_NO_UBSAN>>:-fno-sanitize=undefined>)
  endif()
  target_link_options(kvilt_options INTERFACE -fsanitize=${KVILT_SANITIZE})
  if(KVILT_UNOPTIMIZED)
    target_compile_options(kvilt_options INTERFACE -O0)
  endif()
  if(KVILT_SANITIZE STREQUAL thread AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    target_compile_options(kvilt_options INTERFACE -Wno-tsan)  # fences (base/latest.h) order atomics only
  endif()
endif()

# kvilt_unity(TARGET MOST [b.cc ...]): at most MOST sources at once, in batches of about one size; those given one by one.
# Most of a source's compile time is its headers and the templates that they instantiate: eight sources at once take about
# as long as two of them one by one. Tests are longer: with six at once no core waits long for the last batch.
function(kvilt_unity target most)
  if(KVILT_UNITY)
    get_target_property(sources ${target} SOURCES)
    if(ARGN)
      list(REMOVE_ITEM sources ${ARGN})
    endif()
    list(LENGTH sources count)
    math(EXPR batches "(${count} + ${most} - 1) / ${most}")
    if(batches GREATER 0)
      math(EXPR batch "(${count} + ${batches} - 1) / ${batches}")
      set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${batch})
    endif()
    set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()

function(kvilt_module name)
  cmake_parse_arguments(M "" "" "SOURCES;DEPS;LIBS;TESTS;APART" ${ARGN})
  add_library(kvilt_${name} STATIC ${M_SOURCES})
  kvilt_unity(kvilt_${name} 8 ${M_APART})
  target_link_libraries(kvilt_${name} PUBLIC kvilt_options ${M_LIBS})
  foreach(dep ${M_DEPS})
    target_link_libraries(kvilt_${name} PUBLIC kvilt_${dep})
  endforeach()
  if(KVILT_TESTS AND M_TESTS)
    kvilt_test(${name}_test SOURCES ${M_TESTS} DEPS ${name} APART ${M_APART})
  endif()
endfunction()

# kvilt_test(NAME SOURCES ... DEPS module ... [APART b.cc ...]): a GoogleTest program; it runs in the source root so that
# test data has one path.
function(kvilt_test name)
  cmake_parse_arguments(T "" "" "SOURCES;DEPS;LIBS;APART" ${ARGN})
  add_executable(${name} ${T_SOURCES})
  kvilt_unity(${name} 6 ${T_APART})
  add_dependencies(kvilt_tests ${name})
  # A test's own code runs once: -O1 compiles it in two thirds of the time of -O3 (what it tests keeps its flags).
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(KVILT_SANITIZE)
    # Of a test's own code AddressSanitizer's checks are enough: UBSan's take 40 % of its compile time.
    set_target_properties(${name} PROPERTIES KVILT_NO_UBSAN ON)
    target_compile_options(${name} PRIVATE -O0)
  endif()
  foreach(dep ${T_DEPS})
    target_link_libraries(${name} PRIVATE kvilt_${dep})
  endforeach()
  target_link_libraries(${name} PRIVATE ${T_LIBS} GTest::gtest GTest::gtest_main)
  gtest_discover_tests(${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 900)
endfunction()
