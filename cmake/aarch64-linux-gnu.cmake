# Cross-compiling the native kernels for 64-bit ARM, with Debian's g++-aarch64-linux-gnu: see scripts/wheels.sh.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_STRIP aarch64-linux-gnu-strip)

# The target's Python, unpacked by scripts/arm64_root.sh. What builds the wheel has set the build machine's own.
set(root "$ENV{FEDMEF_ARM64_ROOT}")
set(Python_INCLUDE_DIR "${root}/usr/include/python3.11" CACHE PATH "" FORCE)
set(CMAKE_CXX_STANDARD_INCLUDE_DIRECTORIES "${root}/usr/include")
