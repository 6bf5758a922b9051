// Package doctor tries what an emulated NIC needs from this machine. Every check does the real thing, small; versions
// and settings are only looked at to explain a refusal.
package doctor

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/nicemu/space"
)

// States of a check.
const (
	OK      = "ok"
	Limited = "limited"
	No      = "no"
)

// Check is one line.
type Check struct {
	Name   string `json:"name"`
	State  string `json:"state"`
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"` // the command that would change it
}

// String is the check in one line, as a command that was stopped by it quotes it.
func (c Check) String() string {
	s := c.Name + ": " + c.State + ": " + c.Detail
	if c.Fix != "" && c.State != OK {
		s += "; to change that: " + c.Fix
	}
	return s
}

// Report is all of it.
type Report struct {
	Checks   []Check  `json:"checks"`
	Wire     string   `json:"wire"`      // what `wire: auto` takes
	Hosts    string   `json:"isolation"` // root, user, none
	View     string   `json:"view"`
	DMA      string   `json:"dma"`
	Defaults []string `json:"defaults"` // the same for people, with what it costs
	Usable   bool     `json:"usable"`
}

// ProbeCommand is the hidden command that runs Probe, inside namespaces or as the other process of a pair.
const ProbeCommand = "__probe"

// Options of Run.
type Options struct {
	LibDir    string // of our library, "" when it was not found
	LibErr    error
	TryView   func() (mode string, err error) // the view, by the same way as `nicemu run`
	SelfCheck bool
}

// Run makes all checks.
func Run(o Options) Report {
	var r Report
	add := func(c Check) Check { r.Checks = append(r.Checks, c); return c }
	root := os.Getuid() == 0

	netRoot, netUser := tryNet(root)
	add(netCheck(root, netRoot, netUser))
	add(userCheck(netUser))
	switch {
	case root && netRoot == nil:
		r.Hosts = "root"
	case netUser == nil:
		r.Hosts = "user"
	default:
		r.Hosts = "none"
	}
	tap, uso := TAP(r.Hosts)
	add(tap)
	add(uso)
	dma, mode := DMA()
	add(dma)
	r.DMA = mode
	memfd := add(memfdCheck())
	add(viewCheck(o, &r))
	add(enterCheck(r.Hosts))
	lib := add(libCheck(o))
	add(conflictCheck(o.LibDir))
	add(hardwareCheck())
	for _, c := range programChecks() {
		add(c)
	}
	add(coresCheck())
	add(dpdkCheck())

	r.Wire = "udp"
	if tap.State == OK && r.Hosts != "none" {
		r.Wire = "tap"
	}
	r.Usable = dma.State != No && memfd.State == OK && lib.State == OK
	r.Defaults = defaults(r)
	return r
}

func defaults(r Report) []string {
	var d []string
	switch r.Wire {
	case "tap":
		d = append(d, "labs: wires are TAPs on bridges; every frame is seen by the kernel, tcpdump on the bridge works")
	default:
		d = append(d, "labs: wires are UDP sockets on the loopback interface; as fast as TAPs, but nothing to see with tcpdump on a bridge")
	}
	switch r.Hosts {
	case "root":
		d = append(d, "hosts: network, UTS and mount namespaces")
	case "user":
		d = append(d, "hosts: namespaces inside a user namespace; programs keep your user number and get no rights")
	default:
		d = append(d, "hosts: no namespaces; all hosts are this machine at 127.0.x.y, and two servers cannot use the same TCP port")
	}
	d = append(d, "view: "+r.View)
	switch r.DMA {
	case "process_vm":
		d = append(d, "DMA: process_vm_readv and process_vm_writev; no copy by the program")
	case "proc_mem":
		d = append(d, "DMA: /proc/PID/mem; about a third of the speed for many small pieces, and it writes through read-only pages")
	case "assist":
		d = append(d, "DMA: a thread of our library in each program copies; slower answers, and a stopped program's connections fail")
	default:
		d = append(d, "DMA: not known")
	}
	return d
}

func tryNet(root bool) (asRoot, asUser error) {
	asRoot = errors.New("not root")
	if root {
		asRoot = space.Try(false)
	}
	return asRoot, space.Try(true)
}

func netCheck(root bool, asRoot, asUser error) Check {
	c := Check{Name: "network, UTS and mount namespaces", State: OK}
	switch {
	case asRoot == nil:
		c.Detail = "made as root"
	case asUser == nil:
		c.Detail = "made inside a user namespace"
		if root {
			c.State, c.Detail = Limited, "as root: "+asRoot.Error()+"; inside a user namespace: yes"
			c.Fix = "docker run --cap-add SYS_ADMIN, or outside the container"
		}
	default:
		c.State, c.Detail, c.Fix = No, asUser.Error(), userFix()
		if root {
			c.Detail = asRoot.Error()
			c.Fix = "docker run --cap-add SYS_ADMIN --security-opt seccomp=unconfined, or outside the container"
		}
	}
	return c
}

func userCheck(err error) Check {
	if err == nil {
		return Check{"user namespaces", OK, "made", ""}
	}
	return Check{"user namespaces", No, err.Error(), userFix()}
}

// userFix is what usually stands in the way of user namespaces.
func userFix() string {
	if v := setting("kernel/apparmor_restrict_unprivileged_userns"); v == "1" {
		return "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
	}
	if v := setting("kernel/unprivileged_userns_clone"); v == "0" {
		return "sudo sysctl kernel.unprivileged_userns_clone=1"
	}
	if v := setting("user/max_user_namespaces"); v == "0" {
		return "sudo sysctl user.max_user_namespaces=15000"
	}
	return "outside a container or chroot, or with a seccomp profile that allows unshare"
}

func setting(name string) string {
	b, err := os.ReadFile("/proc/sys/" + name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// probe runs Probe in another process and decodes its answer.
func probe(what string, attr *syscall.SysProcAttr, started func(pid int), out any) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	c := exec.Command(exe, ProbeCommand, what)
	c.SysProcAttr, c.WaitDelay = attr, 5*time.Second
	in, err := c.StdinPipe()
	if err != nil {
		return err
	}
	outPipe, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
	if started != nil {
		started(c.Process.Pid)
	}
	in.Close() // the probe waits for this
	timer := time.AfterFunc(10*time.Second, func() { _ = c.Process.Kill() })
	defer timer.Stop()
	return json.NewDecoder(outPipe).Decode(out)
}

type tapAnswer struct{ TAP, USO string } // "" = works

// TAP makes a TAP in a network namespace of the kind that hosts get here: root, user or none.
func TAP(hosts string) (tap, uso Check) {
	tap, uso = Check{Name: "TAP device", State: OK}, Check{Name: "UDP segmentation on TAP", State: OK}
	var attr *syscall.SysProcAttr
	switch hosts {
	case "root":
		attr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	case "user":
		attr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
		space.IntoUserNS(attr)
	default:
		tap.State, tap.Detail, tap.Fix = No, "no network namespace to make one in", userFix()
		uso.State, uso.Detail = No, "no TAP"
		return tap, uso
	}
	var a tapAnswer
	if err := probe("tap", attr, nil, &a); err != nil {
		a.TAP = err.Error()
	}
	if a.TAP != "" {
		tap.State, tap.Detail = No, a.TAP
		tap.Fix = "sudo modprobe tun && sudo chmod 666 /dev/net/tun"
		if _, err := os.Stat("/dev/net/tun"); err != nil {
			tap.Fix = "sudo modprobe tun; in a container: docker run --device /dev/net/tun"
		}
		uso.State, uso.Detail = No, "no TAP"
		return tap, uso
	}
	tap.Detail = "made in a namespace of its own"
	uso.Detail = "the kernel takes super-packets of up to 64 KiB"
	if a.USO != "" {
		uso.State, uso.Detail, uso.Fix = Limited, a.USO+"; one frame per system call instead", "Linux 6.2 or newer"
	}
	return tap, uso
}

type dmaAnswer struct{ VM, Mem string }

// secret is what the other process has to read from this one's memory.
var secret [8]byte

// DMA tries whether one process of this user may read the memory of another, and says which way the daemon will take.
func DMA() (c Check, mode string) {
	c = Check{Name: "memory of programs (process_vm_readv)", State: OK}
	secret = [8]byte{'n', 'i', 'c', 'e', 'm', 'u', '!', byte(os.Getpid())}
	var a dmaAnswer
	// Not the parent reads the child here, but the other way round: a daemon is nobody's parent.
	arg := fmt.Sprintf("dma:%d:%d:%d", os.Getpid(), addressOf(&secret), secret[7])
	err := probe(arg, nil, func(pid int) {
		_ = unix.Prctl(unix.PR_SET_PTRACER, uintptr(pid), 0, 0, 0) // what our library does under Yama
	}, &a)
	runtime.KeepAlive(&secret)
	switch {
	case err != nil:
		c.State, c.Detail = No, err.Error()
		return c, "none"
	case a.VM == "":
		c.Detail = "one process of this user read another's memory"
		if v := setting("kernel/yama/ptrace_scope"); v == "1" {
			c.Detail += " (Yama: our library names the daemon first)"
		}
		return c, "process_vm"
	case a.Mem == "":
		c.State, c.Detail = Limited, "process_vm_readv: "+a.VM+"; /proc/PID/mem works"
		c.Fix = "podman run --cap-add SYS_PTRACE, or a seccomp profile that allows process_vm_readv"
		return c, "proc_mem"
	}
	c.State, c.Detail = Limited, "process_vm_readv: "+a.VM+"; /proc/PID/mem: "+a.Mem+"; programs copy by themselves"
	c.Fix = "docker run --cap-add SYS_PTRACE"
	if v := setting("kernel/yama/ptrace_scope"); v == "2" || v == "3" {
		c.Fix = "sudo sysctl kernel.yama.ptrace_scope=1"
	}
	return c, "assist"
}

func memfdCheck() Check {
	c := Check{Name: "sealed memory files", State: OK, Detail: "made, sealed and mapped"}
	fd, err := unix.MemfdCreate("doctor", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err == nil {
		defer unix.Close(fd)
		err = unix.Ftruncate(fd, 1<<20)
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err == nil {
		var m []byte
		if m, err = unix.Mmap(fd, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
			err = unix.Munmap(m)
		}
	}
	if err != nil {
		c.State, c.Detail, c.Fix = No, err.Error(), "Linux 4.14 or newer with memfd_create"
	}
	return c
}

func viewCheck(o Options, r *Report) Check {
	c := Check{Name: "view of /sys and /dev", State: OK}
	if o.TryView == nil {
		c.State, c.Detail = No, "not tried"
		return c
	}
	mode, err := o.TryView()
	if err != nil {
		r.View = "none: library path only"
		c.State, c.Detail, c.Fix = Limited, fmt.Sprintf("%v; programs that read /sys/class/infiniband or want a device node (UCX) will not find the NIC", err), userFix()
		return c
	}
	r.View = mode
	c.Detail = "by " + mode
	return c
}

func enterCheck(hosts string) Check {
	c := Check{Name: "entering hosts", State: OK, Detail: "by setns"}
	if hosts == "user" {
		c.Detail = "by nsenter"
		if _, err := exec.LookPath("nsenter"); err != nil {
			c.State, c.Detail, c.Fix = No, "nsenter is missing", "apt-get install util-linux"
		}
	}
	if hosts == "none" {
		c.State, c.Detail = Limited, "no namespaces to enter; hosts differ by their NICs only"
	}
	return c
}
