package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/daemon/fail"
)

// setting is a variable that RCCL and NCCL read, and why it is set.
type setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	Why   string `json:"why"`
}

func (e *env) rcclCommand() *cli.Command {
	return &cli.Command{
		Name: "rccl", Usage: "RCCL and NCCL over an emulated NIC",
		Subcommands: []*cli.Command{{
			Name: "env", Usage: "print the environment with which unmodified RCCL or NCCL uses the NIC", ArgsUsage: " ",
			Description: "  eval \"$(mroce rccl env)\"\n  mroce rccl env --way ib\n\n" +
				"Two ways: our plugin (needs no libibverbs of the system, no sysfs), or the IB transport that is built into the libraries, over our libibverbs.\n" +
				"To be set where the program runs: with `nicemu run` or `nicemu lab exec`, which say which NIC it sees. docs/rccl.md tells more.",
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "way", Usage: "plugin or ib", Value: "plugin"},
				&cli.BoolFlag{Name: "one-gpu", Usage: "also what makes two processes on one GPU look like two hosts; --host differs between them"},
				&cli.StringFlag{Name: "host", Usage: "for --one-gpu: a name for this process's host", Value: "a"},
				&cli.StringFlag{Name: "interface", Usage: "network interface for what the libraries tell each other over TCP", Value: "mr0"},
				&cli.BoolFlag{Name: "json", Usage: "an array of objects"},
			},
			Action: e.rcclEnv,
		}},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fail.Usagef("no command %q; there is mroce rccl env", c.Args().First())
			}
			return cli.ShowSubcommandHelp(c)
		},
	}
}

func (e *env) rcclEnv(c *cli.Context) error {
	lib, err := libraries()
	if err != nil {
		return err
	}
	var set []setting
	switch c.String("way") {
	case "plugin":
		set = []setting{
			{"LD_LIBRARY_PATH", lib + "${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}", "releases that take no path in NCCL_NET_PLUGIN find librccl-net.so and libnccl-net.so here"},
			{"NCCL_NET_PLUGIN", filepath.Join(lib, "librccl-net.so"), "our plugin; it loads libibverbs.so.1 from its own folder"},
			{"NCCL_NET", "MetaRoCE", "nothing else: an error instead of sockets where the NIC is not there"},
		}
	case "ib":
		set = []setting{
			{"LD_LIBRARY_PATH", lib + "${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}", "libibverbs.so and libibverbs.so.1 of the emulated NIC"},
			{"NCCL_NET_PLUGIN", "none", "no plugin in between"},
			{"NCCL_NET", "IB", "nothing else: an error instead of sockets where the NIC is not there"},
			{"NCCL_IB_HCA", "=mr0", "this NIC"},
			{"NCCL_IB_GID_INDEX", "0", "its first address; nothing is looked up in sysfs then"},
			{"NCCL_IB_MERGE_NICS", "0", "an emulated NIC holds all planes in one device"},
			{"NCCL_IB_DATA_DIRECT", "0", "a feature of mlx5 that is looked for otherwise"},
		}
	default:
		return fail.Usagef("--way %q: plugin or ib", c.String("way"))
	}
	set = append(set,
		setting{"NCCL_NET_GDR_LEVEL", "LOC", "the NIC reaches no GPU memory, also where nvidia_peermem is loaded"},
		setting{"NCCL_DMABUF_ENABLE", "0", "likewise by dma-buf"},
		setting{"NCCL_SOCKET_IFNAME", c.String("interface"), "what the libraries tell each other over TCP; the NIC's own host port in a lab"})
	if c.Bool("one-gpu") {
		set = append(set,
			setting{"NCCL_HOSTID", c.String("host"), "processes of one name are one host; two on one GPU are refused there"},
			setting{"NCCL_P2P_DISABLE", "1", "no way past the network"},
			setting{"NCCL_SHM_DISABLE", "1", "likewise"})
	}
	if c.Bool("json") {
		return json.NewEncoder(e.out).Encode(set)
	}
	for _, s := range set {
		fmt.Fprintf(e.out, "export %s=\"%s\" # %s\n", s.Name, strings.ReplaceAll(s.Value, `"`, `\"`), s.Why)
	}
	return nil
}
