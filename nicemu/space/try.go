package space

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TryCommand is the hidden command that runs TryInside.
const TryCommand = "__try"

// Try makes the namespaces of a host, uses them a little, and leaves them again: nil, or why this machine refuses.
// Making them is not enough: where AppArmor restricts user namespaces they can be made, and every right in them is
// refused.
func Try(rootless bool) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	c := exec.Command(exe, TryCommand, Here("uts"))
	c.WaitDelay = 5 * time.Second
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWUTS}
	if rootless {
		IntoUserNS(c.SysProcAttr)
	}
	said, err := c.CombinedOutput()
	if err == nil {
		return nil
	}
	var pe *os.PathError
	if errors.As(err, &pe) {
		err = pe.Err // that it was fork and exec of what is no news to a user
	}
	if text := strings.TrimPrefix(strings.TrimSpace(string(said)), "nicemu: "); text != "" {
		err = errors.New(text)
	}
	what := "network, mount and UTS namespaces"
	if rootless {
		what = "user, " + what
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Here names a namespace of this process, to tell later whether another process is in it.
func Here(kind string) string {
	link, _ := os.Readlink("/proc/self/ns/" + kind)
	return link
}

// TryInside does one thing in each namespace that a lab does. args name the namespace outside: done there, by hand,
// it would change the machine.
func TryInside(args []string) error {
	if len(args) != 1 || args[0] == "" || args[0] == Here("uts") {
		return errors.New("this command is for nicemu's own use")
	}
	if err := slave(); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("cannot set up lo: %w", err)
	}
	if err := unix.Sethostname([]byte("try")); err != nil {
		return fmt.Errorf("cannot set the host name: %w", err)
	}
	return nil
}
