# LARDER_HAS_CUDA: whether the kernels for NVIDIA's GPUs are built. Where LARDER_CUDA is AUTO, an nvcc that is
# too old for them, or lacks its runtime, is as none.
set(LARDER_HAS_CUDA FALSE)
if(LARDER_CUDA STREQUAL OFF)
  return()
endif()
# 90: Hopper; its PTX serves what comes after it.
set(LARDER_NVCC_OPTIONS -std=c++20)
set(LARDER_NVCC_TARGETS -gencode=arch=compute_90,code=[compute_90,sm_90])
set(LARDER_NVCC_HOPPER_TARGETS -gencode=arch=compute_90,code=compute_90 -gencode=arch=compute_90a,code=sm_90a)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # Else nvcc takes the g++ of the PATH, whose libstdc++ need not be the one that is linked.
  list(APPEND LARDER_NVCC_OPTIONS -ccbin ${CMAKE_CXX_COMPILER})
endif()

find_program(LARDER_NVCC nvcc PATHS /usr/local/cuda/bin)
set(missing "")
if(NOT LARDER_NVCC)
  set(missing "no nvcc; put it on the PATH or give -DLARDER_NVCC=")
elseif(NOT LARDER_NVCC_WORKS STREQUAL "${LARDER_NVCC};${LARDER_NVCC_OPTIONS}")
  set(try ${CMAKE_BINARY_DIR}/try_nvcc)
  file(WRITE ${try}.cu "#include <concepts>\n#include <cuda_fp16.h>\n__global__ void f(float* x) { *x = __half2float(__float2half_rn(*x)); }\n")
  execute_process(COMMAND ${LARDER_NVCC} ${LARDER_NVCC_OPTIONS} ${LARDER_NVCC_TARGETS} -c ${try}.cu -o ${try}.o
                  RESULT_VARIABLE failed OUTPUT_QUIET ERROR_VARIABLE trial_errors)
  if(failed)
    set(missing "${LARDER_NVCC} does not compile C++20 for compute capability 9.0 with this machine's compiler")
    if(LARDER_CUDA STREQUAL ON)
      string(APPEND missing ":\n${trial_errors}")
    endif()
  else()
    set(LARDER_NVCC_WORKS "${LARDER_NVCC};${LARDER_NVCC_OPTIONS}" CACHE INTERNAL "")
  endif()
endif()
if(NOT missing)
  # The compiler itself knows where it is at home; on the PATH there may be a script.
  execute_process(COMMAND ${LARDER_NVCC} --dryrun -E -x cu /dev/null OUTPUT_QUIET ERROR_VARIABLE cuda_settings)
  string(REGEX MATCH "TOP=([^\n]+)" cuda_root "${cuda_settings}")
  set(cuda_root ${CMAKE_MATCH_1})
  find_path(LARDER_CUDART_INCLUDE cuda_runtime_api.h NO_DEFAULT_PATH
            PATHS ${cuda_root}/include ${cuda_root}/targets/x86_64-linux/include)
  find_library(LARDER_CUDART cudart_static NO_DEFAULT_PATH
               PATHS ${cuda_root}/lib64 ${cuda_root}/lib ${cuda_root}/targets/x86_64-linux/lib)
  if(NOT LARDER_CUDART_INCLUDE OR NOT LARDER_CUDART)
    set(missing "${LARDER_NVCC} has no CUDA runtime beside it (cuda_runtime_api.h, libcudart_static.a)")
  endif()
endif()

if(missing AND LARDER_CUDA STREQUAL ON)
  message(FATAL_ERROR "LARDER_CUDA=ON: ${missing}")
elseif(missing)
  message(STATUS "Without CUDA: ${missing}")
else()
  set(LARDER_HAS_CUDA TRUE)
endif()
