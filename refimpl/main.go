//go:build dpdk

// Command mroce-dpdk is the RDMA NIC of this project on DPDK ports: the reference implementation. `mroce-dpdk --help` lists
// the commands.
package main

import (
	"os"

	"github.com/metaroce/metaroce/refimpl/cmd"
)

// version is set by the linker.
var version = "unknown"

func main() { os.Exit(cmd.Main(os.Args, version)) }
