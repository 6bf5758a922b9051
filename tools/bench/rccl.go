package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/metaroce/metaroce/tools/bed"
	"github.com/metaroce/metaroce/tools/coll"
)

// RCCLResult is what build/bench-rccl.json holds: bus bandwidths in bytes a second, of each round.
type RCCLResult struct {
	Time   string     `json:"time"`
	CPUs   int        `json:"cpus"`
	Kernel string     `json:"kernel"`
	Load   string     `json:"load"` // of the machine when it began: /proc/loadavg
	Wire   string     `json:"wire"`
	Planes int        `json:"planes"`
	Ranks  int        `json:"ranks"`
	Rows   []*RCCLRow `json:"rows"`
}

// RCCLRow is a collective of a size; by way, see rcclWays.
type RCCLRow struct {
	Collective string               `json:"collective"`
	Bytes      uint64               `json:"bytes"`
	BusBW      map[string][]float64 `json:"busbw_bytes_per_second"`
	Seconds    map[string][]float64 `json:"time_seconds"`
}

// rcclWays are what is compared. TCP over the planes is that of the hosts' port of the same NIC, so that it meets the same loss;
// TCP over a veth is what the kernel does without us, and nothing can be lost there (no netem in this kernel family).
var rcclWays = []struct {
	name, net, ifname, loss string
}{
	{"plugin", "", "", "0"},
	{"socket, veth", "socket", "mrbench", "0"},
	{"socket, planes", "socket", "mr0", "0"},
	{"plugin, 1 %", "", "", "1%"},
	{"socket, planes, 1 %", "socket", "mr0", "1%"},
}

const rcclRanks = 2

// runRCCL measures collectives through our plugin and through a net of TCP sockets, between the same namespaces.
func runRCCL(bin, wire, out string, rounds int) error {
	load, _ := os.ReadFile("/proc/loadavg")
	r := &RCCLResult{Time: time.Now().UTC().Format(time.RFC3339), CPUs: runtime.NumCPU(), Kernel: kernel(), Load: strings.TrimSpace(string(load)),
		Wire: wire, Planes: bed.Planes, Ranks: rcclRanks}
	lib, err := filepath.Abs(filepath.Join(filepath.Dir(bin), "../lib"))
	if err != nil {
		return err
	}
	err = inLab(bin, bed.Options{Wire: wire, Hosts: 2}, func(b *bed.Bed) error {
		for i := range rounds {
			say("round %d of %d", i+1, rounds)
			for w := range rcclWays {
				if err := r.measure(b, lib, w); err != nil {
					return fmt.Errorf("%s: %w", rcclWays[w].name, err)
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	printRCCL(r)
	return saveJSON(out, r)
}

func (r *RCCLResult) measure(b *bed.Bed, lib string, w int) error {
	way := rcclWays[w]
	if err := b.Nicemu("lab", "impair", "loss="+way.loss); err != nil {
		return err
	}
	net := way.net
	if net == "" {
		net = filepath.Join(lib, "librccl-net.so")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	return coll.Run(ctx, coll.Options{
		Rank: filepath.Join(lib, "collbench-rank"), Ranks: rcclRanks, Root: fmt.Sprintf("%s:%d", bed.VethA, b.NextPort()),
		Args: strings.Fields("--net " + net + " --min 8 --max 67108864 --factor 8 --iters 1000 --seconds 0.5 --warmup 2 --colls all-reduce,all-to-all"),
		Command: func(ctx context.Context, rank int, program ...string) *exec.Cmd {
			c := b.Command(ctx, bed.Host(rank%2), program...)
			c.Env = append(c.Env, "NCCL_SOCKET_IFNAME="+way.ifname)
			return c
		},
		Line: func(_ *coll.Head, row *coll.Row, _ *coll.Storm, _ json.RawMessage) error {
			if row != nil {
				r.add(way.name, row)
			}
			return nil
		},
	})
}

func (r *RCCLResult) add(way string, row *coll.Row) {
	for _, x := range r.Rows {
		if x.Collective == row.Collective && x.Bytes == row.Size {
			x.BusBW[way] = append(x.BusBW[way], row.BusBW)
			x.Seconds[way] = append(x.Seconds[way], row.Seconds)
			return
		}
	}
	r.Rows = append(r.Rows, &RCCLRow{row.Collective, row.Size, map[string][]float64{way: {row.BusBW}}, map[string][]float64{way: {row.Seconds}}})
}

func printRCCL(r *RCCLResult) {
	fmt.Printf("%d CPUs, Linux %s, load %s at the beginning; %s wires, %d planes; %d ranks on 2 hosts; %d rounds: median (lowest to highest)\n\n",
		r.CPUs, r.Kernel, r.Load, r.Wire, r.Planes, r.Ranks, len(r.Rows[0].BusBW[rcclWays[0].name]))
	fmt.Print("| bus bandwidth in Gbit/s, below 64 KiB µs | bytes |")
	for _, w := range rcclWays {
		fmt.Printf(" %s |", w.name)
	}
	fmt.Println("\n|---|---|" + strings.Repeat("---|", len(rcclWays)))
	for _, x := range r.Rows {
		fmt.Printf("| %s | %d |", x.Collective, x.Bytes)
		for _, w := range rcclWays {
			if x.Bytes < 65536 {
				fmt.Printf(" %s µs |", spread(x.Seconds[w.name], 1e6, 0))
				continue
			}
			fmt.Printf(" %s |", spread(x.BusBW[w.name], 8e-9, 2))
		}
		fmt.Println()
	}
}
