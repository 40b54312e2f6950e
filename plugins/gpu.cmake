# Which libraries for NVIDIA GPUs are built: BITMTP_CUDA and BITMTP_TENSORRT become ON or OFF here.
#
# AUTO is ON on a Jetson that has nvcc and, for TensorRT, its headers: there the GPU is known and nothing needs to be asked. Elsewhere it
# is OFF, since compiling the kernels takes minutes. A Jetson is what has L4T's release file.

set(BITMTP_TENSORRT_INCLUDE "" CACHE PATH
  "Folder of TensorRT's headers; empty: where JetPack and Debian have them, or $TENSORRT_ROOT/include")
set(BITMTP_SYSTEM_ROOT "" CACHE PATH "Folder that stands for / where files of the system are looked for")
mark_as_advanced(BITMTP_SYSTEM_ROOT)

foreach(library BITMTP_CUDA BITMTP_TENSORRT)
  if(NOT "${${library}}" MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "${library} is '${${library}}', expected AUTO, ON or OFF")
  endif()
endforeach()

# NVIDIA's packages leave nvcc off the PATH.
if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(BITMTP_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin PATHS ${BITMTP_SYSTEM_ROOT}/usr/local/cuda/bin)
  if(BITMTP_NVCC)
    set(CMAKE_CUDA_COMPILER ${BITMTP_NVCC})
  endif()
endif()
if(NOT BITMTP_TENSORRT_INCLUDE)
  find_path(BITMTP_TENSORRT_FOUND NvInferRuntime.h NO_DEFAULT_PATH
    HINTS $ENV{TENSORRT_ROOT}/include
    PATHS ${BITMTP_SYSTEM_ROOT}/usr/include/aarch64-linux-gnu ${BITMTP_SYSTEM_ROOT}/usr/include/x86_64-linux-gnu
      ${BITMTP_SYSTEM_ROOT}/usr/include)
  if(BITMTP_TENSORRT_FOUND)
    set(BITMTP_TENSORRT_INCLUDE ${BITMTP_TENSORRT_FOUND})
  endif()
endif()

set(bitmtp_jetson OFF)
if(NOT CMAKE_CROSSCOMPILING AND EXISTS ${BITMTP_SYSTEM_ROOT}/etc/nv_tegra_release)
  set(bitmtp_jetson ON)
endif()
set(bitmtp_no_nvcc "")
if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  set(bitmtp_no_nvcc "no nvcc on the PATH or in /usr/local/cuda/bin")
endif()
set(bitmtp_no_headers "")
if(NOT EXISTS ${BITMTP_TENSORRT_INCLUDE}/NvInferRuntime.h)
  set(bitmtp_no_headers "no NvInferRuntime.h of TensorRT in BITMTP_TENSORRT_INCLUDE or below /usr/include")
endif()
set(bitmtp_jetpack "on a Jetson, sudo apt install nvidia-jetpack")

if(BITMTP_TENSORRT STREQUAL "ON" AND bitmtp_no_headers)
  message(FATAL_ERROR "BITMTP_TENSORRT is ON, and there is ${bitmtp_no_headers}: ${bitmtp_jetpack}")
endif()
if(BITMTP_CUDA STREQUAL "AUTO")
  set(BITMTP_CUDA OFF)
  if(BITMTP_TENSORRT STREQUAL "ON" OR (bitmtp_jetson AND NOT bitmtp_no_nvcc))
    set(BITMTP_CUDA ON)
  elseif(bitmtp_jetson)
    message(STATUS "CUDA and TensorRT libraries skipped: ${bitmtp_no_nvcc}: ${bitmtp_jetpack}")
  else()
    message(STATUS
      "CUDA and TensorRT libraries skipped: no Jetson (no /etc/nv_tegra_release); BITMTP_CUDA=ON and BITMTP_TENSORRT=ON build them")
  endif()
endif()
if(BITMTP_TENSORRT STREQUAL "AUTO")
  set(BITMTP_TENSORRT OFF)
  if(bitmtp_jetson AND BITMTP_CUDA AND NOT bitmtp_no_headers)
    set(BITMTP_TENSORRT ON)
  elseif(bitmtp_jetson AND BITMTP_CUDA)
    message(STATUS "TensorRT library skipped: ${bitmtp_no_headers}: ${bitmtp_jetpack}")
  endif()
endif()
if(BITMTP_TENSORRT AND NOT BITMTP_CUDA)
  message(FATAL_ERROR "BITMTP_TENSORRT is ON and BITMTP_CUDA is OFF: the plugins are made of the CUDA kernels")
endif()
if(bitmtp_jetson AND NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 87-real)
endif()
