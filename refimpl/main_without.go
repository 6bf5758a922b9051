//go:build !dpdk

// Command mroce-dpdk, built without DPDK, says so.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "mroce-dpdk: built without DPDK; install libdpdk-dev and build with `make` (it sets the build tag dpdk)")
	os.Exit(3)
}
