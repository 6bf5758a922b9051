// Package space makes the namespaces of a lab: one network namespace for the fabric (the planes' bridges) and one
// network + UTS + mount namespace for every host.
//
// A holder process makes them and keeps them by file descriptor until it is ended; nothing is bound to a path, so an
// ordinary user can do it, inside a user namespace of his own. Who starts the holder stays outside: it receives the
// TAP descriptors over a socket (SCM_RIGHTS) and hands them to the daemon, which has to reach the memory of
// programs inside and outside and therefore must not sit in that user namespace.
//
// The order:
//  1. Start runs this binary again with new namespaces (clone flags), and sends it the Plan.
//  2. Hold, in there, makes bridges, TAPs and hosts, and answers with one message each (and the descriptors).
//  3. Start returns what was made; Hold sleeps.
//  4. Enter or EnterCommand run programs in a host.
package space

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/daemon/rundir"
	"github.com/metaroce/metaroce/nicemu/view"
)

// HoldCommand is the hidden command that runs Hold.
const HoldCommand = "__hold"

// sockFD is the holder's end of the socket to Start.
const sockFD = 3

// Plan is what the holder is to make.
type Plan struct {
	MTU      int  // of the planes' bridges and TAPs
	HostMTU  int  // of the hosts' netdevs
	Planes   int  // bridges with a TAP for every NIC; 0 = none, the wires are not TAPs
	HostPort bool // the host's netdev is a TAP of its NIC; else a veth on a bridge of its own
	Hosts    []Host
	Rootless bool

	PlaneVnetHdr, HostVnetHdr bool // TAPs carry the virtio header
}

// Host is one host to be made.
type Host struct {
	Name      string
	NICs      []NIC
	HostsFile string     // takes the place of /etc/hosts
	View      *view.Spec // nil = none
	Socket    string     // of the daemon that says what the view shows
}

// NIC is one NIC: its netdev gets the addresses.
type NIC struct {
	Name  string
	Addrs []netip.Prefix
	MAC   [6]byte
}

// TAP names one TAP: Plane -1 is the host port.
type TAP struct {
	Host, NIC string
	Plane     int
}

// NS are a host's namespaces as descriptors of the holder.
type NS struct {
	Net int `json:"net"`
	UTS int `json:"uts"`
	Mnt int `json:"mnt"`
}

// Made is what Start returns.
type Made struct {
	Holder rundir.Process
	Hosts  map[string]NS
	TAPs   map[TAP]*os.File
	Notes  []string // what did not work but does no harm

	sock *os.File
}

// Keep tells the holder that it is recorded and shall outlive us.
func (m *Made) Keep() error {
	return unix.Sendmsg(int(m.sock.Fd()), []byte{'!'}, nil, nil, unix.MSG_NOSIGNAL)
}

// Close closes the descriptors of this process. A holder that was not told to stay ends.
func (m *Made) Close() {
	m.sock.Close()
	for _, f := range m.TAPs {
		f.Close()
	}
}

// message is one answer of the holder.
type message struct {
	Host  string `json:"host,omitempty"`
	NS    *NS    `json:"ns,omitempty"`
	TAP   *TAP   `json:"tap,omitempty"` // with a descriptor
	Note  string `json:"note,omitempty"`
	Error string `json:"error,omitempty"`
	Done  bool   `json:"done,omitempty"`
}

// Start makes the namespaces of a plan. The holder writes what it has to say to log.
func Start(p Plan, log *os.File) (*Made, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		ours.Close()
		theirs.Close()
		return nil, err
	}
	c := exec.Command(exe, HoldCommand)
	c.ExtraFiles = []*os.File{theirs}
	c.Stdout, c.Stderr = log, log
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS}
	if p.Rootless {
		IntoUserNS(c.SysProcAttr)
	}
	err = c.Start()
	theirs.Close()
	if err != nil {
		ours.Close()
		return nil, fmt.Errorf("cannot make namespaces: %w", err)
	}
	exited := make(chan struct{})
	go func() { _ = c.Wait(); close(exited) }()
	made, err := receive(ours, p)
	if err == nil {
		made.Holder, err = rundir.Record(c.Process.Pid)
	}
	if err != nil {
		_ = c.Process.Kill()
		<-exited
		if made != nil {
			made.Close()
		} else {
			ours.Close()
		}
		return nil, err
	}
	return made, nil
}

// IntoUserNS lets a command start in a user namespace in which the user keeps his number and has all capabilities,
// over exec too.
func IntoUserNS(a *syscall.SysProcAttr) {
	a.Cloneflags |= unix.CLONE_NEWUSER
	a.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}}
	a.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}}
	a.GidMappingsEnableSetgroups = false
	last := 40
	if b, err := os.ReadFile("/proc/sys/kernel/cap_last_cap"); err == nil {
		if v, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil {
			last = v
		}
	}
	for i := 0; i <= last; i++ {
		a.AmbientCaps = append(a.AmbientCaps, uintptr(i))
	}
}

func socketPair() (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "holder"), os.NewFile(uintptr(fds[1]), "holder"), nil
}

// receive sends the plan and collects the answers.
func receive(sock *os.File, p Plan) (*Made, error) {
	fd := int(sock.Fd())
	// A holder that hangs must not hang us.
	tv := unix.NsecToTimeval(int64(60 * time.Second))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return nil, err
	}
	text, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	if err := sendChunks(fd, text); err != nil {
		return nil, fmt.Errorf("the namespace holder did not start: %w", err)
	}
	made := &Made{sock: sock, Hosts: map[string]NS{}, TAPs: map[TAP]*os.File{}}
	buf, oob := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(4))
	for {
		n, oobn, _, _, err := unix.Recvmsg(fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return made, fmt.Errorf("the namespace holder does not answer: %w", err)
		}
		if n == 0 {
			return made, fmt.Errorf("the namespace holder ended early")
		}
		var m message
		if err := json.Unmarshal(buf[:n], &m); err != nil {
			return made, fmt.Errorf("the namespace holder said %q: %w", buf[:n], err)
		}
		switch {
		case m.Error != "":
			return made, fmt.Errorf("%s", m.Error)
		case m.NS != nil:
			made.Hosts[m.Host] = *m.NS
		case m.TAP != nil:
			f, err := oneFD(oob[:oobn], m.TAP)
			if err != nil {
				return made, err
			}
			made.TAPs[*m.TAP] = f
		case m.Note != "":
			made.Notes = append(made.Notes, m.Note)
		case m.Done:
			return made, nil
		}
	}
}

func oneFD(oob []byte, t *TAP) (*os.File, error) {
	cms, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(cms) != 1 {
		return nil, fmt.Errorf("no descriptor came with the TAP of %s: %w", t.Host, err)
	}
	fds, err := unix.ParseUnixRights(&cms[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("no descriptor came with the TAP of %s: %w", t.Host, err)
	}
	return os.NewFile(uintptr(fds[0]), fmt.Sprintf("tap-%s-%s-%d", t.Host, t.NIC, t.Plane)), nil
}

// A SEQPACKET message has a limit, a plan has none: it travels in pieces, ended by an empty-object marker.
const chunk = 32 << 10

func sendChunks(fd int, text []byte) error {
	for len(text) > 0 {
		n := min(len(text), chunk)
		if err := unix.Sendmsg(fd, append([]byte{'+'}, text[:n]...), nil, nil, unix.MSG_NOSIGNAL); err != nil {
			return err
		}
		text = text[n:]
	}
	return unix.Sendmsg(fd, []byte{'.'}, nil, nil, unix.MSG_NOSIGNAL)
}

func receiveChunks(fd int) ([]byte, error) {
	var all []byte
	buf := make([]byte, chunk+1)
	for {
		n, err := unix.Read(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		switch {
		case n > 0 && buf[0] == '+':
			all = append(all, buf[1:n]...)
		case n == 1 && buf[0] == '.':
			return all, nil
		default:
			return nil, fmt.Errorf("the plan ended early")
		}
	}
}

// Enter moves the calling goroutine into a host's namespaces and replaces the program. It only returns on error.
// It works without a user namespace: a process with threads cannot join one.
func Enter(holder int, ns NS, argv0 string, argv, env []string) error {
	runtime.LockOSThread()
	cwd, _ := os.Getwd()
	var fds []int
	for _, n := range []int{ns.Net, ns.UTS, ns.Mnt} {
		fd, err := unix.Open(nsPath(holder, n), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("cannot open a namespace of the lab: %w", err)
		}
		fds = append(fds, fd)
	}
	// The mount namespace asks for file system attributes that are not shared with the other threads.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	for i, fd := range fds {
		if err := unix.Setns(fd, []int{unix.CLONE_NEWNET, unix.CLONE_NEWUTS, unix.CLONE_NEWNS}[i]); err != nil {
			return fmt.Errorf("cannot enter a namespace of the lab: %w", err)
		}
	}
	if err := unix.Chdir(cwd); err != nil {
		_ = unix.Chdir("/")
	}
	return syscall.Exec(argv0, argv, env) //nolint:gosec // the user's own program is the point
}

// EnterCommand is the command line that runs argv in a host's namespaces below a user namespace. nsenter
// (util-linux, part of every Debian) has one thread, which the user namespace demands; a second step of our own
// restores the working directory.
func EnterCommand(holder int, ns NS, step, argv []string) []string {
	cmd := []string{
		"nsenter", "--preserve-credentials", fmt.Sprintf("--user=/proc/%d/ns/user", holder),
		"--net=" + nsPath(holder, ns.Net), "--uts=" + nsPath(holder, ns.UTS), "--mount=" + nsPath(holder, ns.Mnt), "--",
	}
	return append(append(cmd, step...), argv...)
}

func nsPath(holder, fd int) string { return fmt.Sprintf("/proc/%d/fd/%d", holder, fd) }

// Inside lists the processes that are in a host's network namespace, the holder excepted.
func Inside(holder int, ns NS) []rundir.Process {
	var found []rundir.Process
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || !IsInside(holder, ns, pid) {
			continue
		}
		if p, err := rundir.Record(pid); err == nil {
			found = append(found, p)
		}
	}
	return found
}

// IsInside reports whether a process, not the holder, is in a host's network namespace.
func IsInside(holder int, ns NS, pid int) bool {
	if pid == holder || pid == os.Getpid() {
		return false
	}
	want, err := os.Readlink(nsPath(holder, ns.Net))
	if err != nil {
		return false
	}
	got, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	return err == nil && got == want
}
