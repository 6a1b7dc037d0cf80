# cmake -DNM=nm -DOBJECTS=a.o|b.o -DNAMESPACE=isa_avx512 -P check_symbols.cmake
# Fails when an object defines a function that the linker may use in another object's place: one outside
# its instruction set's namespace.
string(REPLACE "|" ";" objects "${OBJECTS}")
if(NOT objects)
  message(FATAL_ERROR "no objects")
endif()
foreach(object ${objects})
  execute_process(COMMAND ${NM} --defined-only --extern-only ${object}
                  OUTPUT_VARIABLE symbols RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${NM} failed on ${object}")
  endif()
  string(REPLACE "\n" ";" lines "${symbols}")
  foreach(line ${lines})
    # DW.ref.*: a pointer to the runtime's own personality function, not code.
    if(NOT line MATCHES "${NAMESPACE}" AND NOT line MATCHES "DW\\.ref\\.")
      message(SEND_ERROR "${object}: shared between instruction sets: ${line}")
    endif()
  endforeach()
endforeach()
