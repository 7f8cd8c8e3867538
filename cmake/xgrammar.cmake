# xgrammar as one static library, from the source that scripts/get_xgrammar put into third_party/: target `xgrammar`.
# It keeps its own flags in every preset: -O2, no warnings and no sanitizers (a mask of its debug build takes as long as a
# decode step, and its compilation costs each preset as little as a second through ccache).
set(KVILT_XGRAMMAR_DIR ${PROJECT_SOURCE_DIR}/third_party/xgrammar-0.2.8 CACHE PATH "Source of xgrammar")
if(NOT EXISTS ${KVILT_XGRAMMAR_DIR}/verified)
  message(FATAL_ERROR "the source of xgrammar is not in ${KVILT_XGRAMMAR_DIR}: run scripts/get_xgrammar (scripts/setup "
    "does), or configure with -DKVILT_GRAMMAR=OFF for a build that refuses constrained answers")
endif()
file(GLOB xgrammar_sources CONFIGURE_DEPENDS ${KVILT_XGRAMMAR_DIR}/cpp/*.cc ${KVILT_XGRAMMAR_DIR}/cpp/converter_ext/*.cc
  ${KVILT_XGRAMMAR_DIR}/cpp/support/*.cc)
add_library(xgrammar STATIC ${xgrammar_sources})
set_target_properties(xgrammar PROPERTIES CXX_STANDARD 17 COMPILE_WARNING_AS_ERROR OFF)
target_include_directories(xgrammar SYSTEM PUBLIC ${KVILT_XGRAMMAR_DIR}/include ${KVILT_XGRAMMAR_DIR}/3rdparty/picojson
  ${KVILT_XGRAMMAR_DIR}/3rdparty/dlpack/include)
# Its log is src/grammar/xgrammar_hooks.cc's: what it only warns of (a keyword that it ignores) is an error there.
target_compile_definitions(xgrammar PRIVATE
  NDEBUG XGRAMMAR_LOG_CUSTOMIZE=1 XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
target_compile_options(xgrammar PRIVATE -O2 -g0 -w -include ${PROJECT_SOURCE_DIR}/src/grammar/xgrammar_hooks.h)
target_link_libraries(xgrammar PRIVATE Threads::Threads)
