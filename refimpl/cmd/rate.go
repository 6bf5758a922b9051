//go:build dpdk

package cmd

import (
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/refimpl/wire"
)

// rateCommand measures a port without any protocol: what the NIC is compared with. Two processes, one at each end.
func (e *env) rateCommand() *cli.Command {
	return &cli.Command{
		Name: "rate", Usage: "frames a second of a port without a protocol: the ceiling; one process at each end", ArgsUsage: "send|receive [-- EAL ARGUMENTS]",
		Description: example("mroce-dpdk rate receive --wire dpdk:net_memif0,role=server,socket=/tmp/m.sock & sleep 1", "mroce-dpdk rate send --wire dpdk:net_memif0,role=client,socket=/tmp/m.sock"),
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "wire", Usage: "the port", Required: true},
			&cli.IntFlag{Name: "frame", Usage: "bytes of a frame", Value: 4200},
			&cli.IntFlag{Name: "mtu", Usage: "MTU of the port", Value: defaultMTU},
			&cli.DurationFlag{Name: "for", Usage: "how long", Value: 3 * time.Second},
			jsonFlag(),
		},
		Action: e.rate,
	}
}

// Rate is what `rate --json` prints.
type Rate struct {
	Frames  uint64  `json:"frames"`
	Bytes   uint64  `json:"bytes"`
	Seconds float64 `json:"seconds"`
	Bits    float64 `json:"bits_per_second"`
}

func (e *env) rate(c *cli.Context) error {
	if ealHelp(c.Args().Slice()) {
		return nil
	}
	side, url, n := c.Args().First(), c.String("wire"), c.Int("frame")
	if side != "send" && side != "receive" {
		return fail.Usagef("rate send, or rate receive?")
	}
	if err := wire.Check(url); err != nil {
		return fail.Usagef("--wire: %w", err)
	}
	if n < 60 || n > c.Int("mtu")+14 {
		return fail.Usagef("--frame %d: 60 to %d bytes with that MTU", n, c.Int("mtu")+14)
	}
	args, cores, err := ealArgs(c.Args().Tail(), fmt.Sprintf("rate-%d", os.Getpid()), []string{url}, 1, func(string, ...any) {})
	if err != nil {
		return fail.Usagef("%w", err)
	}
	if err := startEAL(args); err != nil {
		return err
	}
	defer endEAL(args)
	memory, err := wire.NewMemory(1, c.Int("mtu"), 1)
	if err != nil {
		return fail.Lackf("%w", err)
	}
	p, err := wire.Open(url, wire.Options{MTU: c.Int("mtu"), Memory: memory})
	if err != nil {
		return refusal(err)
	}
	defer p.Close()
	runtime.LockOSThread() // the process ends with it
	if err := bind(cores, 0); err != nil {
		return err
	}
	if !p.AwaitLink(20 * time.Second) {
		return fail.Failf("no link: nobody is at the other end")
	}
	r, start := Rate{}, time.Now()
	if side == "send" {
		r.Frames = p.SendFrames(make([]byte, n), c.Duration("for"))
		r.Bytes = r.Frames * uint64(n)
	} else {
		r.Frames, r.Bytes = p.CountFrames(c.Duration("for"))
	}
	r.Seconds = time.Since(start).Seconds()
	r.Bits = 8 * float64(r.Bytes) / r.Seconds
	if c.Bool("json") {
		return e.printJSON(r)
	}
	fmt.Fprintf(e.out, "%d frames, %.2f Gbit/s\n", r.Frames, r.Bits/1e9)
	return nil
}
