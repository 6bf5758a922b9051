// A subset of github.com/yerden/go-dpdk: the same import paths and signatures, written from DPDK's C API.
module github.com/yerden/go-dpdk

go 1.26.0
