# cmake -DNM=nm -DOBJECTS=a.o;b.o -P no_shared_code.cmake: fails if an object built with instruction-set flags defines a symbol
# that the linker may take for every other file (inline functions and templates are weak): a machine without those
# instructions would die in it.
foreach(object ${OBJECTS})
  execute_process(COMMAND ${NM} -C --defined-only ${object} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[0-9a-f]+ [WVuw] [^\n]*" shared "${symbols}")
  if(shared)
    list(JOIN shared "\n  " lines)
    message(FATAL_ERROR "${object} shares code with other files; make it static or always inline:\n  ${lines}")
  endif()
endforeach()
