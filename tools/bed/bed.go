// Package bed is a lab for tools that measure: hosts of namespaces, programs on them, a veth for TCP beside the planes.
package bed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Planes of a lab, and the addresses of its hosts.
const (
	Planes = 4
	HostA  = "10.0.0.1"
	VethA  = "172.31.99.1" // beside the lab's own networks
	vethB  = "172.31.99.2"
	// VethDevices are the ends of the veth, on a and on b.
	VethDevices = "mrbench0,mrbench1"
)

// Bed is a lab, with a veth between the namespaces of hosts a and b besides the planes.
type Bed struct {
	bin     string
	dir     string
	env     []string
	holders []*exec.Cmd // a sleeping process in each host: names its namespace to ip(8)
	port    int
	Failure error // of taking it down
}

// Options of a lab.
type Options struct {
	Wire   string
	Hosts  int      // a, b, …: 10.0.0.1, 10.0.0.2, …
	Planes int      // 0: the constant above
	Plane  string   // properties of the planes as in a lab file: "noise: 2ms"
	Impair string   // of all planes, likewise: "loss: 0.5%"
	NoVeth bool     // nothing beside the planes; no need for root
	Flags  []string // of lab up
}

// New brings a lab up with the given nicemu. Hosts a and b are joined by a veth as well, unless told otherwise.
func New(bin string, o Options) (*Bed, error) {
	dir, err := os.MkdirTemp("", "mr-bench")
	if err != nil {
		return nil, err
	}
	b := &Bed{bin: bin, dir: dir, env: append(os.Environ(), "XDG_RUNTIME_DIR="+dir, "MR_LAB=bench"), port: 18600}
	if o.Planes == 0 {
		o.Planes = Planes
	}
	text := fmt.Sprintf("name: bench\nplanes: %d\nwire: %s\nhosts:\n", o.Planes, o.Wire)
	for i := range o.Hosts {
		text += fmt.Sprintf("  %s: {addr: 10.0.0.%d/24}\n", Host(i), i+1)
	}
	if o.Plane != "" {
		text += "plane: {" + o.Plane + "}\n"
	}
	if o.Impair != "" {
		text += "impair:\n  - {" + o.Impair + "}\n"
	}
	file := filepath.Join(dir, "lab.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return nil, err
	}
	if err := b.Nicemu(append([]string{"lab", "up", file}, o.Flags...)...); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	if o.NoVeth {
		return b, nil
	}
	if err := b.veth(); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// Host is the name of the host number i.
func Host(i int) string { return string(rune('a' + i)) }

// Dir is a directory that goes with the lab.
func (b *Bed) Dir() string { return b.dir }

// Socket is the control socket of the lab's daemon.
func (b *Bed) Socket() string { return filepath.Join(b.dir, "mroce", "bench.sock") }

// NextPort is a TCP port that no program of this bed had.
func (b *Bed) NextPort() int {
	b.port++
	return b.port
}

// Close takes the lab down; see Failure.
func (b *Bed) Close() {
	for _, h := range b.holders {
		_ = h.Process.Kill()
		_ = h.Wait()
	}
	b.holders = nil
	b.Failure = errors.Join(b.Failure, b.Nicemu("lab", "down"))
	os.RemoveAll(b.dir)
}

// veth joins the hosts' namespaces by a pair of interfaces: the way TCP takes.
func (b *Bed) veth() error {
	var pids []string
	for _, host := range []string{"a", "b"} {
		h := b.Command(context.Background(), host, "sleep", "3600")
		if err := h.Start(); err != nil {
			return err
		}
		b.holders = append(b.holders, h)
		pids = append(pids, strconv.Itoa(h.Process.Pid))
	}
	time.Sleep(300 * time.Millisecond) // nicemu enters the namespace, then becomes sleep
	if out, err := exec.Command("ip", "link", "add", "mrbench0", "netns", pids[0], "type", "veth", "peer", "name", "mrbench1", "netns", pids[1]).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot join the two namespaces by a veth (needs root): %w: %s", err, out)
	}
	for _, c := range [][]string{{"a", VethA, "mrbench0"}, {"b", vethB, "mrbench1"}} {
		for _, ip := range [][]string{{"addr", "add", c[1] + "/30", "dev", c[2]}, {"link", "set", c[2], "up"}} {
			if _, err := b.On(10*time.Second, c[0], append([]string{"ip"}, ip...)...); err != nil {
				return err
			}
		}
	}
	return nil
}

// Nicemu runs nicemu about the lab; it must succeed.
func (b *Bed) Nicemu(args ...string) error {
	_, err := b.Ask(args...)
	return err
}

// Ask runs nicemu about the lab and returns what it wrote.
func (b *Bed) Ask(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.bin, args...)
	cmd.Env = b.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("nicemu %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// Command prepares a program on a host.
func (b *Bed) Command(ctx context.Context, host string, program ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, b.bin, append([]string{"lab", "exec", host, "--"}, program...)...)
	cmd.Env = b.env
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 3 * time.Second
	return cmd
}

// On runs a program on a host and returns what the program wrote: its output, then what it complained of.
func (b *Bed) On(limit time.Duration, host string, program ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := b.Command(ctx, host, program...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s on %s: %w\n%s%s", strings.Join(program, " "), host, err, errs.String(), out.String())
	}
	return out.String() + errs.String(), nil
}

// Pair runs a server on host a and a client on b, which is repeated while the server does not listen yet.
func (b *Bed) Pair(limit time.Duration, server, client []string) (string, error) {
	return b.PairOn(limit, "b", server, client)
}

// PairOn is Pair with the client on another host.
func (b *Bed) PairOn(limit time.Duration, host string, server, client []string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	s := b.Command(ctx, "a", server...)
	var said bytes.Buffer
	s.Stdout, s.Stderr = &said, &said
	if err := s.Start(); err != nil {
		return "", err
	}
	var out string
	err := errors.New("the server never listened")
	for range 20 {
		time.Sleep(250 * time.Millisecond)
		if out, err = b.On(limit, host, client...); err == nil || ctx.Err() != nil {
			break
		}
		if text := err.Error(); !strings.Contains(text, "onnect to") && !strings.Contains(text, "refused") {
			break
		}
	}
	if err != nil {
		_ = s.Process.Signal(syscall.SIGTERM)
		_ = s.Wait()
		return "", fmt.Errorf("%w\nserver: %s", err, said.String())
	}
	return out, s.Wait()
}

// TCP returns what iperf3 receives, in bits a second.
func (b *Bed) TCP(seconds int) (float64, error) {
	out, err := b.Pair(time.Duration(seconds+20)*time.Second, []string{"iperf3", "-s", "-1"}, []string{"iperf3", "-c", VethA, "-t", strconv.Itoa(seconds), "-J"})
	if err != nil {
		return 0, err
	}
	var r struct {
		End struct {
			Sum struct {
				Bits float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		}
	}
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&r); err != nil {
		return 0, fmt.Errorf("iperf3's JSON: %w", err)
	}
	return r.End.Sum.Bits, nil
}

// clockNoise is how perftest says that it could not calibrate its clock, as the machine was busy just then: the data
// moved, but every rate and time it prints is 0.
const clockNoise = "Correlation coefficient"

// Perftest returns the numbers in the last line of a perftest program's table.
func (b *Bed) Perftest(limit time.Duration, program string, args ...string) ([]float64, error) {
	server := append([]string{program, "-F", "-p", strconv.Itoa(b.NextPort())}, args...)
	out, err := b.Pair(limit, server, append(append([]string{}, server...), HostA))
	for try := 0; try < 5 && strings.Contains(out, clockNoise); try++ {
		out, err = b.Pair(limit, server, append(append([]string{}, server...), HostA))
	}
	if err != nil {
		return nil, err
	}
	if strings.Contains(out, clockNoise) {
		return nil, fmt.Errorf("%s could not calibrate its clock in six tries: the machine is too busy", program)
	}
	return LastRow(program, out)
}

// LastRow is the numbers in the last line of the table that a program of perftest printed.
func LastRow(program, out string) ([]float64, error) {
	var last []float64
	for _, line := range strings.Split(out, "\n") {
		var v []float64
		for _, f := range strings.Fields(line) {
			x, err := strconv.ParseFloat(f, 64)
			if err != nil {
				v = nil
				break
			}
			v = append(v, x)
		}
		if len(v) >= 4 {
			last = v
		}
	}
	if last == nil {
		return nil, fmt.Errorf("%s printed no table:\n%s", program, out)
	}
	return last, nil
}
