//go:build interop

package interop

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/metaroce/metaroce/tools/bed"
)

const (
	vmIPv4, vmIPv6 = "10.0.0.2", "fd00::2"
	mtu            = 4300             // of every link: enough for a path MTU of 4096 over IPv6
	slots          = 4                // commands that the VM runs at a time
	vmLife         = 14 * time.Minute // the job in ci/run.sh has 15
)

// machine is the VM.
type machine struct {
	netns   string // with the bridge br0 and the VM's TAP vm0
	dir     string
	qemu    *exec.Cmd
	ended   chan struct{}
	console bed.Output
	free    chan *slot
}

// slot is one of the VM's ports for commands.
type slot struct {
	conn net.Conn
	in   *bufio.Reader
}

var (
	theVM    *machine
	vmErr    error
	bootOnce sync.Once
)

// errLacks is an error that means: this machine cannot do it.
var errLacks = errors.New("not possible on this machine")

// vm returns the VM, which the first caller boots.
func vm(t testing.TB) *machine {
	t.Helper()
	needMachine(t)
	bootOnce.Do(func() {
		began := time.Now()
		if theVM, vmErr = boot(); vmErr == nil {
			t.Logf("the VM was up after %.1f s", time.Since(began).Seconds())
		}
	})
	if errors.Is(vmErr, errLacks) {
		skip(t, "%v", vmErr)
	}
	if vmErr != nil {
		t.Fatal(vmErr)
	}
	select {
	case <-theVM.ended:
		t.Fatalf("the VM has ended:\n%s", theVM.console.String())
	default:
	}
	return theVM
}

func TestMain(m *testing.M) {
	code := m.Run()
	if theVM != nil {
		theVM.end()
	}
	os.Exit(code)
}

// boot makes the VM's files and namespace, and waits until it takes commands.
func boot() (*machine, error) {
	if out, err := exec.Command("./vm.sh").CombinedOutput(); err != nil {
		var code *exec.ExitError
		if errors.As(err, &code) && code.ExitCode() == 3 {
			return nil, fmt.Errorf("%w: %s", errLacks, strings.TrimSpace(string(out)))
		}
		return nil, fmt.Errorf("vm.sh: %w\n%s", err, out)
	}
	sweep()
	dir, err := tempDir("vm")
	if err != nil {
		return nil, err
	}
	m := &machine{netns: netnsOf(os.Getpid()), dir: dir, ended: make(chan struct{}), free: make(chan *slot, slots)}
	if err = m.network(); err == nil {
		err = m.launch()
	}
	if err == nil {
		err = m.connect()
	}
	if err != nil {
		m.end()
		return nil, fmt.Errorf("%w; the VM said:\n%s", err, m.console.String())
	}
	return m, nil
}

// network makes the namespace with a bridge and the VM's TAP.
func (m *machine) network() error {
	for _, args := range [][]string{
		{"netns", "add", m.netns},
		{"netns", "exec", m.netns, "sysctl", "-q", "-w", "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"},
		{"-n", m.netns, "link", "set", "lo", "up"},
		{"-n", m.netns, "link", "add", "br0", "mtu", strconv.Itoa(mtu), "type", "bridge", "mcast_snooping", "0"},
		{"-n", m.netns, "tuntap", "add", "vm0", "mode", "tap", "vnet_hdr"},
		{"-n", m.netns, "link", "set", "vm0", "mtu", strconv.Itoa(mtu), "master", "br0", "up"},
		{"-n", m.netns, "link", "set", "br0", "up"},
	} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %v: %w\n%s", args, err, out)
		}
	}
	return nil
}

// launch starts QEMU in the namespace. It ends with us, and after vmLife at the latest.
func (m *machine) launch() error {
	files := "../../build/interop/"
	args := []string{
		"netns", "exec", m.netns, "timeout", "-k", "5", strconv.Itoa(int(vmLife.Seconds())),
		"qemu-system-x86_64", "-nodefaults", "-nographic", "-no-reboot", "-accel", "tcg,thread=multi", "-cpu", "max", "-m", "512",
		"-smp", cores(), "-kernel", files + "vmlinuz", "-initrd", files + "initrd",
		"-append", fmt.Sprintf("console=ttyS0 panic=-1 quiet vm_mtu=%d vm_addr=%s/24,%s/64", mtu, vmIPv4, vmIPv6), "-serial", "stdio",
		"-netdev", "tap,id=net,ifname=vm0,script=no,downscript=no",
		"-device", fmt.Sprintf("virtio-net-pci,netdev=net,host_mtu=%d,romfile=", mtu), "-device", "virtio-serial-pci",
	}
	for i := range slots {
		args = append(args, "-chardev", fmt.Sprintf("socket,id=c%d,path=%s,server=on,wait=off", i, m.socket(i)),
			"-device", fmt.Sprintf("virtserialport,chardev=c%d,name=run%d", i, i))
	}
	m.qemu = exec.Command("ip", args...)
	m.qemu.Stdout, m.qemu.Stderr = &m.console, &m.console
	if err := startMortal(m.qemu, m.ended); err != nil {
		m.qemu = nil
		return err
	}
	return nil
}

// cores of the VM: MR_VM_CORES, else 1. With two, rxe of Linux 6.1 was seen to begin a retransmission wrongly under loss: a
// WRITE_ONLY without data in the place of the WRITE_FIRST, and the rest of the message one PSN late. The NAK that this
// earns ends the connection.
func cores() string {
	if n := os.Getenv("MR_VM_CORES"); n != "" {
		return n
	}
	return "1"
}

func (m *machine) socket(i int) string { return filepath.Join(m.dir, fmt.Sprintf("run%d", i)) }

// connect waits for the VM's init and opens its ports.
func (m *machine) connect() error {
	deadline := time.Now().Add(2 * time.Minute)
	for !strings.Contains(m.console.String(), "init: ready") {
		select {
		case <-m.ended:
			return errors.New("the VM ended while booting")
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return errors.New("the VM does not come up")
		}
	}
	for i := range slots {
		conn, err := net.Dial("unix", m.socket(i))
		if err != nil {
			return err
		}
		m.free <- &slot{conn, bufio.NewReader(conn)}
	}
	return nil
}

// end ends the VM and removes what it needed.
func (m *machine) end() {
	if m.qemu != nil {
		_ = m.qemu.Process.Signal(syscall.SIGTERM) // it may have ended
		<-m.ended
	}
	_ = exec.Command("ip", "netns", "del", m.netns).Run() // may not have been made
	os.RemoveAll(m.dir)
}

func (m *machine) String() string { return "rxe" }
func (m *machine) device() string { return "rxe0" }
func (m *machine) addr(v6 bool) string {
	if v6 {
		return vmIPv6
	}
	return vmIPv4
}

// gid: 0 is the link-local one, then the addresses in the order in which init gives them.
func (m *machine) gid(v6 bool) string {
	if v6 {
		return "2"
	}
	return "1"
}

// start implements side. The words go through a shell unquoted.
func (m *machine) start(t testing.TB, limit time.Duration, program ...string) *run {
	t.Helper()
	r := &run{name: "rxe: " + strings.Join(program, " "), done: make(chan struct{})}
	r.stop = func() { m.stop(t, program[0]) }
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	var s *slot
	select {
	case s = <-m.free:
	case <-ctx.Done():
		t.Fatalf("%s: the VM has no place for one more command", r.name)
	}
	go func() {
		defer close(r.done)
		defer cancel()
		r.err = s.do(limit, strings.Join(program, " "), &r.out)
		if !errors.Is(r.err, os.ErrDeadlineExceeded) {
			m.free <- s // else it is still busy, and lost
		}
	}()
	t.Cleanup(func() { <-r.done })
	return r
}

// healthy fails the test when the VM's kernel complained of anything since it was asked last.
func (m *machine) healthy(t testing.TB) {
	t.Helper()
	r := m.start(t, 10*time.Second, "dmesg -c | grep -E -A20 'BUG:|WARNING:|Oops|general protection'; true")
	if <-r.done; r.err != nil || strings.TrimSpace(r.out.String()) != "" {
		t.Errorf("the VM's kernel: %v\n%s", r.err, r.out.String())
	}
}

// stop ends the programs of a name.
func (m *machine) stop(t testing.TB, name string) {
	t.Helper()
	<-m.start(t, 10*time.Second, "killall", "-9", name).done
}

// do runs one command in a slot.
func (s *slot) do(limit time.Duration, command string, out *bed.Output) error {
	if err := s.conn.SetDeadline(time.Now().Add(limit + 10*time.Second)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(s.conn, "%d %s\n", max(1, int(limit.Seconds())), command); err != nil {
		return err
	}
	for {
		line, err := s.in.ReadString('\n')
		if err != nil {
			return err
		}
		status, isStatus := strings.CutPrefix(line, "\x01")
		if !isStatus {
			fmt.Fprint(out, line)
			continue
		}
		if status = strings.TrimSpace(status); status != "0" {
			return fmt.Errorf("exit status %s", status)
		}
		return nil
	}
}
