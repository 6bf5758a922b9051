// Command nicemu is an RDMA NIC in software: the daemon that is the NIC, labs of many of them, and what a user needs
// to run programs over it. `nicemu --help` lists the commands.
package main

import (
	"os"

	"github.com/metaroce/metaroce/nicemu/cmd"
)

// version is set by the linker.
var version = "unknown"

func main() { os.Exit(cmd.Main(os.Args, version)) }
