// Package rundir knows where daemons and labs of this user keep their sockets and state, and ends processes
// that we recorded there: by pidfd, after the start time proved that the number still means the same process.
package rundir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Candidates are the directories in which a control socket may be, in the order they are tried.
func Candidates() []string {
	var dirs []string
	if x := os.Getenv("XDG_RUNTIME_DIR"); x != "" {
		dirs = append(dirs, filepath.Join(x, "mroce"))
	}
	return append(dirs, fmt.Sprintf("/tmp/mroce-%d", os.Getuid()), "/run/mroce")
}

// Dir returns the directory for new state, made if needed: $XDG_RUNTIME_DIR/mroce, for root /run/mroce,
// else /tmp/mroce-UID. One in /tmp must be ours alone, since anybody may have made the name before us.
func Dir() (string, error) {
	dir := Candidates()[0]
	if x := os.Getenv("XDG_RUNTIME_DIR"); x == "" || unix.Access(x, unix.W_OK) != nil {
		dir = fmt.Sprintf("/tmp/mroce-%d", os.Getuid())
		if os.Getuid() == 0 && unix.Access("/run", unix.W_OK) == nil {
			dir = "/run/mroce"
		}
	}
	mode := os.FileMode(0o700)
	if os.Getuid() == 0 {
		mode = 0o755 // sockets carry their own mode, and --group opens one to others
	}
	if err := os.Mkdir(dir, mode); err != nil && !errors.Is(err, os.ErrExist) {
		return "", fmt.Errorf("cannot make %s: %w", dir, err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return "", fmt.Errorf("cannot use %s: %w", dir, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Getuid() || st.Mode&0o022 != 0 {
		return "", fmt.Errorf("%s is not a directory of ours alone; remove it or set XDG_RUNTIME_DIR", dir)
	}
	return dir, nil
}

// Sockets lists the control sockets that exist, nearest directory first.
func Sockets() []string {
	var all []string
	for _, d := range Candidates() {
		found, _ := filepath.Glob(filepath.Join(d, "*.sock"))
		slices.Sort(found)
		all = append(all, found...)
	}
	return all
}

// Process names a process so that a reused number is not taken for it.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // field 22 of /proc/PID/stat, ticks since boot
	Boot  string `json:"boot"`  // boot id: files in /tmp may outlive a reboot
}

// Record describes a living process.
func Record(pid int) (Process, error) {
	start, err := startTime(pid)
	if err != nil {
		return Process{}, err
	}
	return Process{PID: pid, Start: start, Boot: bootID()}, nil
}

func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

func startTime(pid int) (uint64, error) {
	f, err := stat(pid)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(f[19], 10, 64)
}

// stat returns the fields of /proc/PID/stat from the third (state) on; the second may contain anything.
func stat(pid int) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	s := string(b)
	f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(f) < 20 {
		return nil, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(f))
	}
	return f, nil
}

// Alive reports whether the process still runs (a zombie does not).
func (p Process) Alive() bool {
	if p.PID <= 0 || p.Boot != bootID() {
		return false
	}
	f, err := stat(p.PID)
	if err != nil || f[0] == "X" {
		return false
	}
	// A first thread that has ended while others go on looks like a zombie; so does, for a moment, a process with
	// threads that becomes another program.
	if f[0] == "Z" && f[17] == "1" {
		return false
	}
	start, err := strconv.ParseUint(f[19], 10, 64)
	return err == nil && start == p.Start
}

// open returns a pidfd of the process, or -1 when it is gone.
func (p Process) open() int {
	if p.PID <= 1 {
		return -1
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return -1
	}
	// Only now does the number stand still: look whether it is still the same process.
	if !p.Alive() {
		unix.Close(fd)
		return -1
	}
	return fd
}

// End ends the process: SIGTERM, and SIGKILL when it is still there after grace. It returns when it is gone.
func (p Process) End(grace time.Duration) error {
	return endAll([]Process{p}, grace, nil)
}

// EndAll ends processes at once, each with the same grace.
func EndAll(ps []Process, grace time.Duration) error { return endAll(ps, grace, nil) }

// EndIf ends processes that, once held by pidfd, still fulfil the condition.
func EndIf(ps []Process, grace time.Duration, still func(pid int) bool) error {
	return endAll(ps, grace, still)
}

func endAll(ps []Process, grace time.Duration, still func(pid int) bool) error {
	var fds []unix.PollFd
	var pids []int
	for _, p := range ps {
		fd := p.open()
		if fd < 0 {
			continue
		}
		defer unix.Close(fd)
		if still != nil && !still(p.PID) {
			continue
		}
		_ = unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0)
		_ = unix.PidfdSendSignal(fd, unix.SIGCONT, nil, 0) // a stopped one would never see it
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		pids = append(pids, p.PID)
	}
	if !waitGone(fds, grace) {
		for _, f := range fds {
			if f.Fd >= 0 {
				_ = unix.PidfdSendSignal(int(f.Fd), unix.SIGKILL, nil, 0)
			}
		}
		if !waitGone(fds, 5*time.Second) {
			return fmt.Errorf("process %d does not end, not even by SIGKILL", pids[slices.IndexFunc(fds, func(f unix.PollFd) bool { return f.Fd >= 0 })])
		}
	}
	return nil
}

// waitGone waits until all pidfds have fired; those that did get Fd -1.
func waitGone(fds []unix.PollFd, limit time.Duration) bool {
	end := time.Now().Add(limit)
	for {
		left := 0
		for i := range fds {
			if fds[i].Fd >= 0 && fds[i].Revents != 0 {
				fds[i].Fd = -1
			}
			if fds[i].Fd >= 0 {
				left++
			}
			fds[i].Revents = 0
		}
		if left == 0 {
			return true
		}
		ms := time.Until(end).Milliseconds()
		if ms < 0 {
			return false
		}
		if _, err := unix.Poll(fds, int(ms)+1); err != nil && !errors.Is(err, unix.EINTR) {
			return false
		}
	}
}
