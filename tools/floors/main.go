// Command floors tries delay floors and congestion rules live: a lab of five hosts over TAP and over UDP sockets, four planes,
// every core busy with something else, ib_write_bw from one host to another and from four to one, over planes as fast as they
// go and over planes of 500 Mbit/s with queues of 4 and of 1 ms. It reports what arrives, what goes again and in vain, what is dropped and where, and what
// the receiver measures beside what truly came.
//
// The floor is tried in two ways: as the target of the congestion rule, changed at run time (`nicemu profile set --target`), and
// as the wire's timing noise (`plane: {noise: …}` of a lab file), which loss timers, grants and the hold of acknowledgements
// follow, too. Everything is measured in several rounds; ratios are taken within a round.
//
//	go run ./tools/floors [-bin build/bin/nicemu] [-o build/floors.json] [-rounds 3] [-seconds 3] [-wires tap,udp] [-only pair]
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/metaroce/metaroce/tools/bed"
)

func main() {
	bin := flag.String("bin", "build/bin/nicemu", "the nicemu to measure")
	out := flag.String("o", "build/floors.json", "where to write the figures")
	wires := flag.String("wires", "tap,udp", "wires to try")
	only := flag.String("only", "", "pair or incast alone")
	seconds := flag.Int("seconds", 3, "of each run")
	rounds := flag.Int("rounds", 3, "how often everything is measured")
	load := flag.Int("load", runtime.NumCPU(), "programs that keep cores busy meanwhile")
	burn := flag.Bool("burn", false, "internal: keep a core busy")
	flag.Parse()
	if *burn {
		for { //nolint:staticcheck // it is there to use a core
		}
	}
	r := &Result{
		Time: time.Now().UTC().Format(time.RFC3339), CPUs: runtime.NumCPU(), Load: *load, Planes: bed.Planes, Seconds: *seconds,
		Noise: map[string][]Spread{}, TCPBits: map[string][]float64{},
	}
	err := run(*bin, strings.Split(*wires, ","), *only, *rounds, r)
	r.print(os.Stdout)
	if e := save(*out, r); err == nil {
		err = e
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "floors: %v\n", err)
		os.Exit(1)
	}
}

// floors are the noises and targets tried; home is the noise of these wires.
var floors = []time.Duration{0, 200 * time.Microsecond, 500 * time.Microsecond, time.Millisecond, home, 10 * time.Millisecond}

const (
	home      = 2 * time.Millisecond
	slow      = "500Mbit"       // four such planes are well below what a core moves; their queues are 256 KiB, 4 ms
	shallow   = "500Mbit 64KiB" // with a queue of 1 ms
	senders   = 4               // of an incast
	lowTarget = time.Microsecond
)

// bench is one lab in use, to be taken down whoever ends us.
type bench struct {
	mu  sync.Mutex
	bed *bed.Bed
}

func (x *bench) set(b *bed.Bed) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.bed = b
}

func (x *bench) close() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.bed == nil {
		return nil
	}
	b := x.bed
	x.bed = nil
	b.Close()
	return b.Failure
}

func run(bin string, wires []string, only string, rounds int, r *Result) error {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return err
	}
	var x bench
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-stop
		_ = x.close() // nothing of the lab stays
		os.Exit(130)
	}()
	end, err := busy(r.Load)
	if err != nil {
		return err
	}
	defer end()
	for i := range rounds {
		for _, wire := range wires {
			for _, noise := range floors {
				fmt.Fprintf(os.Stderr, "round %d of %d, %s, noise %v\n", i+1, rounds, wire, noise)
				b, err := bed.New(bin, bed.Options{Wire: wire, Hosts: 1 + senders, Plane: fmt.Sprintf("noise: %v", noise)})
				if err != nil {
					return err
				}
				x.set(b)
				err = r.lab(b, wire, noise, only)
				if err = errors.Join(err, x.close()); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// busy starts programs that only use processor time, at the priority of everything else.
func busy(n int) (end func(), err error) {
	var all []*exec.Cmd
	end = func() {
		for _, c := range all {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	for range n {
		c := exec.Command(self, "-burn")
		c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := c.Start(); err != nil {
			end()
			return nil, err
		}
		all = append(all, c)
	}
	return end, nil
}

// lab measures all that is tried in a lab of one noise.
func (r *Result) lab(b *bed.Bed, wire string, noise time.Duration, only string) error {
	m, err := newMeter(b)
	if err != nil {
		return err
	}
	defer m.close()
	if noise == home {
		s, err := m.probes(200)
		if err != nil {
			return err
		}
		r.Noise[wire] = append(r.Noise[wire], s)
		tcp, err := b.TCP(r.Seconds)
		if err != nil {
			return err
		}
		r.TCPBits[wire] = append(r.TCPBits[wire], tcp)
	}
	for _, limit := range []string{"", slow, shallow} {
		for _, shape := range []string{"pair", "incast"} {
			if only != "" && only != shape || limit == shallow && shape == "incast" {
				continue
			}
			if err := limitPlanes(b, shape, limit); err != nil {
				return err
			}
			for _, rule := range rules(noise, shape, limit) {
				rule.Wire, rule.Limit, rule.Shape, rule.Noise = wire, limit, shape, noise.Seconds()
				if err := r.one(m, rule); err != nil {
					return fmt.Errorf("%s: %w", rule, err)
				}
			}
		}
	}
	return nil
}

// limitPlanes gives the planes a rate: a pair's on the way out, an incast's where all meet.
func limitPlanes(b *bed.Bed, shape, limit string) error {
	if err := b.Nicemu("lab", "impair", "clear"); err != nil || limit == "" {
		return err
	}
	if shape == "incast" {
		return b.Nicemu("lab", "impair", "--hosts", "a", "rx.rate="+limit)
	}
	rate, queue, _ := strings.Cut(limit, " ")
	words := []string{"lab", "impair", "rate=" + rate}
	if queue != "" {
		words = append(words, "queue="+queue)
	}
	return b.Nicemu(words...)
}

// rules are those tried in a lab of a noise: the default one, whose target is a quarter of it, and where the noise is the wires'
// own, other targets and fixed windows.
func rules(noise time.Duration, shape, limit string) []Setting {
	all := []Setting{{Rule: "delay-ecn"}}
	if noise != home {
		return all
	}
	for _, t := range floors {
		if t != home/4 {
			all = append(all, Setting{Rule: "delay-ecn", Target: max(t, lowTarget).Seconds()})
		}
	}
	if shape == "pair" && limit != shallow {
		all = append(all, Setting{Rule: "fixed", Window: 64 << 10}, Setting{Rule: "fixed", Window: 256 << 10}, Setting{Rule: "fixed", Window: 1 << 20})
	}
	return all
}

func save(path string, r *Result) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
