// Package view shows a program the files that a real RDMA NIC would have: /sys/class/infiniband, its verbs class, and
// the character device /dev/infiniband/uverbsN. Most programs never look; UCX wants the device, NVSHMEM,
// infiniband-diags and node exporters read the tree.
//
// It is made of mounts in a mount namespace of the program's own, so that static programs and shells see it too and
// the machine is left alone. The order (each step was tried against its alternatives):
//  1. a tmpfs on a directory of ours holds the tree;
//  2. a new sysfs, which shows the network namespace's own interfaces, where it is allowed, with what was mounted
//     below /sys mounted again;
//  3. an overlay of empty directories over /sys/class, or, where that is refused, a directory of bind mounts, and the
//     tree's own directories on them, so that what is written to the tree later shows;
//  4. /dev as a tmpfs of binds and links, plus our device, which is /dev/null by another name. Nothing is ever made
//     in the machine's own /dev.
package view

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Spec says what to show.
type Spec struct {
	Work string // an existing directory to mount on; the mount is private
	NICs []NIC
	// GIDAttrs adds ports/1/gid_attrs. UCX ≥ 1.19 then wants a kernel route to every peer, so it is off by default.
	GIDAttrs bool
	// Old steps around overlay and a new sysfs, as where they are refused: for tests.
	Old bool
}

// Class is where the tree is: what programs see as /sys/class.
func (s *Spec) Class() string { return filepath.Join(s.Work, "class") }

// NIC is one device to show.
type NIC struct {
	Name    string // mr0
	Port    string // as the daemon calls it: a/mr0
	GUID    string // 0200:0aff:fe00:0001
	GIDs    []string
	Netdev  string // "" = none
	Rate    string // as sysfs prints it; "" = not known yet
	Version string
	Down    bool

	Counters, HWCounters map[string]uint64
}

// Mount changes the calling thread's mount namespace, which must be a new one whose mounts do not propagate. notes
// are steps that were refused and stepped around.
func Mount(s Spec) (notes []string, err error) {
	if err := unix.Mount("tmpfs", s.Work, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return nil, fmt.Errorf("cannot mount a tmpfs: %w", err)
	}
	if err := writeClass(s.Work, s); err != nil {
		return nil, err
	}
	if s.Old {
		notes = append(notes, "no new sysfs was asked for")
	} else if err := newSysfs(filepath.Join(s.Work, "sys")); err != nil {
		notes = append(notes, fmt.Sprintf("/sys/class/net shows the machine's interfaces: %v", err))
	}
	if err := overClass(s.Work, s.Old); err != nil {
		return notes, err
	}
	return notes, overDev(filepath.Join(s.Work, "dev"), len(s.NICs))
}

// Write makes the tree below dir/class, as plain files, and the devices below dir/dev as links. Without mounts it is what
// MR_SYSFS can lead programs to that ask our library where sysfs is, and what answered system calls show.
func Write(dir string, s Spec) error {
	if err := writeClass(dir, s); err != nil {
		return err
	}
	dev := filepath.Join(dir, "dev/infiniband")
	if err := os.MkdirAll(dev, 0o755); err != nil {
		return err
	}
	for i := range s.NICs {
		err := os.Symlink("/dev/null", filepath.Join(dev, fmt.Sprintf("uverbs%d", i)))
		if err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

func writeClass(dir string, s Spec) error {
	class := filepath.Join(dir, "class")
	if err := os.MkdirAll(class, 0o755); err != nil {
		return err
	}
	f, err := OpenFiles(class)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Update(Tree(s))
}

// newSysfs puts a sysfs of this network namespace over /sys.
func newSysfs(at string) error {
	if err := os.Mkdir(at, 0o755); err != nil {
		return err
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("sysfs", at, "sysfs", flags, ""); err != nil {
		return fmt.Errorf("a new sysfs is refused: %w", err)
	}
	below, err := mountsBelow("/sys")
	if err != nil {
		return err
	}
	for _, m := range below {
		// A directory that this sysfs does not have (another namespace's) is not missed.
		_ = unix.Mount(m, at+strings.TrimPrefix(m, "/sys"), "", unix.MS_BIND|unix.MS_REC, "")
	}
	return unix.Mount(at, "/sys", "", unix.MS_BIND|unix.MS_REC, "")
}

// mountsBelow lists the topmost mounts below a directory: the deeper ones come with them.
func mountsBelow(dir string) ([]string, error) {
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []string
	for s := bufio.NewScanner(f); s.Scan(); {
		fields := strings.Fields(s.Text())
		if len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			all = append(all, unescape(fields[4]))
		}
	}
	slices.Sort(all)
	var top []string
	for _, m := range slices.Compact(all) {
		if len(top) == 0 || !strings.HasPrefix(m, top[len(top)-1]+"/") {
			top = append(top, m)
		}
	}
	return top, nil
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// overClass adds the directories of the tree to /sys/class.
func overClass(work string, old bool) error {
	ours, err := os.ReadDir(filepath.Join(work, "class"))
	if err != nil {
		return err
	}
	points := filepath.Join(work, "points")
	for _, c := range ours {
		if err := os.MkdirAll(filepath.Join(points, c.Name()), 0o755); err != nil {
			return err
		}
	}
	err = errors.New("no overlay was asked for")
	if !old {
		err = unix.Mount("overlay", "/sys/class", "overlay", unix.MS_RDONLY, "lowerdir="+points+":/sys/class")
	}
	if err != nil { // one directory with a bind mount per class does the same
		if e := bindClass(work, ours); e != nil {
			return errors.Join(err, e)
		}
	}
	for _, c := range ours {
		from, to := filepath.Join(work, "class", c.Name()), filepath.Join("/sys/class", c.Name())
		if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("cannot show %s: %w", to, err)
		}
		// Programs only read, as of the kernel's. Who keeps the tree writes to it by another way.
		const flags = unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV
		if err := unix.Mount("", to, "", flags, ""); err != nil {
			return fmt.Errorf("cannot protect %s: %w", to, err)
		}
	}
	return nil
}

// bindClass makes a /sys/class of bind mounts of the old one's directories, and empty ones for ours.
func bindClass(work string, ours []os.DirEntry) error {
	at := filepath.Join(work, "allclass")
	if err := os.Mkdir(at, 0o755); err != nil {
		return err
	}
	classes, err := os.ReadDir("/sys/class")
	if err != nil {
		return err
	}
	for _, c := range classes {
		if slices.ContainsFunc(ours, func(e os.DirEntry) bool { return e.Name() == c.Name() }) {
			continue
		}
		if err := bindInto(filepath.Join("/sys/class", c.Name()), filepath.Join(at, c.Name())); err != nil {
			return fmt.Errorf("cannot show /sys/class/%s: %w", c.Name(), err)
		}
	}
	for _, c := range ours {
		if err := os.Mkdir(filepath.Join(at, c.Name()), 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount(at, "/sys/class", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("cannot change /sys/class: %w", err)
	}
	return nil
}

// bindInto shows from at to, making to: a link as a link, a directory with all below it, a file as a file.
func bindInto(from, to string) error {
	st, err := os.Lstat(from)
	if err != nil {
		return err
	}
	switch {
	case st.Mode()&os.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case st.IsDir():
		if err := os.Mkdir(to, 0o755); err != nil {
			return err
		}
	default:
		f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		f.Close()
	}
	return unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, "")
}

// overDev puts a /dev over the machine's that has our devices besides.
func overDev(at string, nics int) error {
	if err := os.Mkdir(at, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir("/dev")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == "infiniband" {
			continue
		}
		// What cannot be shown (a device that just went away) is not worth failing for.
		_ = bindInto(filepath.Join("/dev", e.Name()), filepath.Join(at, e.Name()))
	}
	dir := filepath.Join(at, "infiniband")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for i := range nics {
		if err := bindInto("/dev/null", filepath.Join(dir, fmt.Sprintf("uverbs%d", i))); err != nil {
			return fmt.Errorf("cannot make the device: %w", err)
		}
	}
	if err := unix.Mount(at, "/dev", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("cannot change /dev: %w", err)
	}
	return nil
}
