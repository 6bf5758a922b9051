package cmd

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/nicemu/view"
	"github.com/metaroce/metaroce/nicemu/view/answer"
)

// A view by answered system calls takes three processes: `run`, which waits for the program's end as ever; the one that
// answers (answerCommand), between both, since it has to be the program's ancestor and outlives it while children of the
// program go on; and the one that puts the filter on and becomes the program (filterCommand).
const (
	answerCommand = "__answer"
	filterCommand = "__filter"
)

// answering is what the two hidden commands are told.
type answering struct {
	View   view.Spec
	Socket string
	Path   string
	Argv   []string
}

// What is said on the socket to `run`.
const (
	saidView = "view"
	saidNo   = "no "
	saidExit = "exit %d"
)

// runAnswered runs a program whose calls about the view are answered.
func (e *env) runAnswered(m viewMode, spec view.Spec, socket string, p viewed) (int, error) {
	text, err := json.Marshal(answering{View: spec, Socket: socket, Path: p.path, Argv: p.argv})
	if err != nil {
		return 0, err
	}
	c, err := self(answerCommand, string(text))
	if err != nil {
		return 0, err
	}
	ours, theirs, err := socketPair()
	if err != nil {
		return 0, err
	}
	defer ours.Close() // the program dies with us
	c.Env, c.ExtraFiles = p.environ, []*os.File{theirs}
	p.streams(c)
	forward := catchSignals()
	err = c.Start()
	theirs.Close()
	if err != nil {
		forward(nil)
		return 0, &noView{err}
	}
	defer forward(c.Process)()
	return e.listen(ours, m, p)
}

// listen waits for the program's end.
func (e *env) listen(from io.Reader, m viewMode, p viewed) (int, error) {
	shown := false
	for lines := bufio.NewScanner(from); lines.Scan(); {
		line, err := strconv.Unquote(lines.Text())
		if err != nil {
			break
		}
		var code int
		switch {
		case line == saidView:
			shown = true
			if p.say {
				e.note("view: %s", m.name)
			}
		case strings.HasPrefix(line, saidNo):
			return 0, &noView{errors.New(strings.TrimPrefix(line, saidNo))}
		default:
			if n, _ := fmt.Sscanf(line, saidExit, &code); n == 1 {
				return code, nil
			}
		}
	}
	if shown {
		return 0, fail.Failf("the process that answers for the view ended; the program was ended with it")
	}
	return 0, &noView{errors.New("the process that would answer ended")}
}

// runAnswer is the process that answers.
func runAnswer(args []string) error {
	in, sock, err := toldAnswering(args)
	if err != nil {
		return fail.Usagef("%s is for nicemu's own use", answerCommand)
	}
	say := func(format string, a ...any) { fmt.Fprintf(sock, "%q\n", fmt.Sprintf(format, a...)) }
	// Orphans of the program stay below us, or Yama would not let us read what they ask for.
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	signal.Notify(make(chan os.Signal, 1), unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU) // who answers must not stop with the program
	ours, theirs, err := socketPair()
	if err != nil {
		say("%s%v", saidNo, err)
		return nil
	}
	c, err := self(filterCommand, args[0])
	if err != nil {
		say("%s%v", saidNo, err)
		return nil
	}
	c.ExtraFiles, c.Stdin, c.Stdout, c.Stderr = []*os.File{theirs}, os.Stdin, os.Stdout, os.Stderr
	served := make(chan struct{})
	refused := ""
	code, err := runChild(c, func(pid int) {
		theirs.Close()
		go dieWith(sock, c)
		r := hearListener(ours)
		if err := answer.MayRead(pid); r.tree != nil && err != nil {
			r = report{text: err.Error()}
			_ = c.Process.Kill() // it waits for its first answer
		}
		if r.tree == nil {
			refused = r.text
			close(served)
			return
		}
		dropStreams()
		say(saidView)
		go func() {
			answerAll(in, int(r.tree.Fd()))
			r.tree.Close()
			close(served)
		}()
	})
	switch {
	case err != nil:
		say("%s%v", saidNo, err)
		return nil
	case refused != "":
		say("%s%s", saidNo, refused)
		return nil
	}
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGQUIT) // what is left of the program may want to outlive a terminal
	say(saidExit, code)
	sock.Close()
	for {
		select {
		case <-served:
			return nil
		case <-time.After(time.Second):
			for pid := 1; pid > 0; { // orphans that have ended
				pid, _ = unix.Wait4(-1, nil, unix.WNOHANG, nil)
			}
		}
	}
}

func toldAnswering(args []string) (in answering, sock *os.File, err error) {
	sock = os.NewFile(3, "report")
	syscall.CloseOnExec(3)
	if len(args) != 1 || sock == nil {
		return in, nil, errors.New("no socket")
	}
	return in, sock, json.Unmarshal([]byte(args[0]), &in)
}

// dieWith ends the program when `run` is gone.
func dieWith(sock io.Reader, c *exec.Cmd) {
	_, _ = io.Copy(io.Discard, sock)
	_ = c.Process.Kill()
}

// hearListener waits for the descriptor, or for why there is none.
func hearListener(from *os.File) report {
	defer from.Close()
	r := hear(from)
	if r.tree == nil && r.text == "" {
		r.text = "the process that would become the program ended"
	}
	return r
}

// dropStreams closes ours, which are the program's: who reads from it waits for the last to close.
func dropStreams() {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	for fd := range 3 {
		_ = unix.Dup3(null, fd, 0)
	}
	_ = unix.Close(null)
}

// answerAll answers until nobody is left who asks.
func answerAll(in answering, listener int) {
	s := answer.Server{Dir: in.View.Work}
	if f, err := view.OpenFiles(in.View.Class()); err == nil {
		r := &refresher{kept: view.Kept{Spec: in.View, Files: f}, from: view.Daemon{Socket: in.Socket}, asked: make(chan chan struct{})}
		go r.run()
		s.Fresh = r.fresh
	}
	_ = s.Serve(listener) // its end is the end of us, whatever the reason
}

// refresher brings the tree up to date when somebody is about to read.
type refresher struct {
	kept  view.Kept
	from  view.Daemon
	asked chan chan struct{}
	last  time.Time // of the answering goroutine
}

const (
	freshFor  = 5 * time.Millisecond  // what is not older need not be asked for again
	freshWait = 50 * time.Millisecond // a daemon that is busy must not keep programs waiting
)

func (r *refresher) run() {
	for done := range r.asked {
		r.kept.Spec.Tell(r.from.Ports())
		_ = r.kept.Files.Update(view.Tree(r.kept.Spec)) // the old text is shown
		close(done)
	}
}

func (r *refresher) fresh() {
	if time.Since(r.last) < freshFor {
		return
	}
	late := time.NewTimer(freshWait)
	defer late.Stop()
	done := make(chan struct{})
	select {
	case r.asked <- done:
	case <-late.C:
		return
	}
	select {
	case <-done:
	case <-late.C:
	}
	r.last = time.Now()
}

// runFilter puts the filter on and becomes the program.
func runFilter(args []string) error {
	in, sock, err := toldAnswering(args)
	if err != nil {
		return fail.Usagef("%s is for nicemu's own use", filterCommand)
	}
	runtime.LockOSThread() // the filter is this thread's, and this thread becomes the program
	listener, err := answer.Install()
	if err != nil {
		fmt.Fprint(sock, err)
		return exitCode(fail.Lacking)
	}
	if err := unix.Sendmsg(3, []byte{'.'}, unix.UnixRights(listener), nil, unix.MSG_NOSIGNAL); err != nil {
		return exitCode(fail.Lacking)
	}
	_ = unix.Close(3) // this is what the other side waits for: from here on calls are answered
	return become(in.Path, in.Argv)
}
