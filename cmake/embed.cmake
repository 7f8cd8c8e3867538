# kvilt_embed(TARGET FILE.html SYMBOL): the text of a file of this folder, as a constant that TARGET's sources include.
#   kvilt_embed(kvilt_server page.html kPageHtml)  ->  #include "server/page.html.h" gives kvilt::kPageHtml (a std::string_view)
# The header is written when CMake runs, and CMake runs again when the file changes. A raw string: the text needs no escapes,
# and must not contain its end, )embedded".
function(kvilt_embed target file symbol)
  cmake_path(GET CMAKE_CURRENT_SOURCE_DIR FILENAME folder)
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
  file(READ ${source} text)
  set(header "#pragma once\n\n#include <string_view>\n\nnamespace kvilt {\n\n")
  string(APPEND header "inline constexpr std::string_view ${symbol} = R\"embedded(${text})embedded\";\n\n}  // namespace kvilt\n")
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/include/${folder}/${file}.h CONTENT "@header@" @ONLY)
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/include)
endfunction()
