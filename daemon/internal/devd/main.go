// Command devd is a daemon for trying things: two NICs, "a/mr0" and "b/mr0", joined by wires in memory. What users
// run is nicemu.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"runtime/pprof"
	"strings"
	"syscall"

	"github.com/metaroce/metaroce/daemon"
	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/devicetest"
)

func main() {
	socket := flag.String("socket", "", "path of the control socket")
	planes := flag.Int("planes", 1, "number of planes")
	mtu := flag.Int("packet", 4300, "largest packet, BTH to ICRC")
	policy := flag.String("transport", "auto", "how connections travel: auto, metaroce, rocev2; two of them, with a comma between, for a and b")
	double := flag.Bool("double", false, "use the test double instead of the MetaRoCE engine")
	profile := flag.String("cpuprofile", "", "write a CPU profile to this file")
	flag.Parse()
	if *socket == "" {
		flag.Usage()
		os.Exit(2)
	}
	first, second, two := strings.Cut(*policy, ",")
	if !two {
		second = first
	}
	howA, errA := device.ParsePolicy(first)
	howB, errB := device.ParsePolicy(second)
	err := errors.Join(errA, errB)
	if err != nil {
		fmt.Fprintln(os.Stderr, "devd:", err)
		os.Exit(2)
	}
	nets := devicetest.NewNet()
	cfgs := []device.Config{
		{Name: "a/mr0", Dev: "mr0", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Seed: 1},
		{Name: "b/mr0", Dev: "mr0", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.2")}, Seed: 2},
	}
	for range *planes {
		a, b := devicetest.NewWire(*mtu)
		cfgs[0].Ports, cfgs[1].Ports = append(cfgs[0].Ports, a), append(cfgs[1].Ports, b)
	}
	cfgs[0].Transport, cfgs[1].Transport = howA, howB
	if *double {
		cfgs[0].NewEngine, cfgs[1].NewEngine = nets.New, nets.New
	}
	if *profile != "" {
		f, err := os.Create(*profile)
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "devd:", err)
			os.Exit(1)
		}
		defer pprof.StopCPUProfile()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err = daemon.Run(ctx, daemon.Config{Socket: *socket, NICs: cfgs, Version: "devd",
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		fmt.Fprintln(os.Stderr, "devd:", err)
		os.Exit(1)
	}
}
