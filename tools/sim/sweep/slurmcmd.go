package sweep

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/metaroce/metaroce/daemon/fail"
)

// commandLimit bounds each command of Slurm: they retry for minutes where the controller does not answer.
const commandLimit = 30 * time.Second

// slurmError is what one of Slurm's commands said.
type slurmError struct{ name, said string }

func (e *slurmError) Error() string { return e.name + ": " + e.said }

// command runs one of Slurm's commands and returns what it printed. Errors carry exit code 3 where Slurm is not there or does not answer.
func command(ctx context.Context, name string, args ...string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fail.Lackf("no %s on this machine: install Slurm's commands (Debian: apt-get install slurm-client), or leave out --engine slurm", name)
	}
	ctx, cancel := context.WithTimeout(ctx, commandLimit)
	defer cancel()
	c := exec.CommandContext(ctx, path, args...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	c.Env = append(slices.DeleteFunc(os.Environ(), habit), "LC_ALL=C")
	c.WaitDelay = time.Second
	err = c.Run()
	said := strings.TrimSpace(errs.String())
	switch {
	case err == nil:
		return out.String(), nil
	case ctx.Err() != nil && !errors.Is(ctx.Err(), context.Canceled):
		return "", fail.Lackf("Slurm's controller does not answer: %s took longer than %s%s", name, commandLimit, after(said))
	case noAnswer.MatchString(said):
		return "", fail.Lackf("Slurm's controller does not answer%s; `scontrol ping` tests it, and SLURM_CONF chooses another configuration", after(said))
	}
	if said == "" {
		said = err.Error()
	}
	return "", &slurmError{name, oneLine(said)}
}

// habit says whether a variable is a user's habit that would change what is printed or how an array is submitted.
func habit(variable string) bool {
	for _, p := range []string{"SQUEUE_", "SACCT_", "SBATCH_ARRAY_INX=", "SBATCH_WAIT=", "SBATCH_REQUEUE="} {
		if strings.HasPrefix(variable, p) {
			return true
		}
	}
	return false
}

var noAnswer = regexp.MustCompile(`(?i)unable to contact slurm controller|connection refused|socket timed out|communication connection failure|` +
	`resolve the? ?ctl|unable to establish config|could not establish a configuration|configuration source|munge|slurm\.conf`)

// tooMany is what Slurm says where a user, an account or the cluster has as many jobs as it may.
var tooMany = regexp.MustCompile(`(?i)temporarily unable to accept|submit.?job.*limit|job submit limit|MaxSubmit|MaxJobCount|resource temporarily unavailable`)

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func after(said string) string {
	if said == "" {
		return ""
	}
	return " (" + oneLine(said) + ")"
}

// arrayLimit returns how many tasks an array may have; it is the first that is asked, and finds out whether there is a Slurm at all.
func arrayLimit(ctx context.Context) (int, error) {
	for _, name := range []string{"sbatch", "squeue", "scancel"} {
		if _, err := exec.LookPath(name); err != nil {
			return 0, fail.Lackf("no %s on this machine: install Slurm's commands (Debian: apt-get install slurm-client), or leave out --engine slurm", name)
		}
	}
	out, err := command(ctx, "scontrol", "show", "config")
	if err != nil {
		return 0, err
	}
	limit := 1001 // Slurm's default
	for line := range strings.Lines(out) {
		if k, v, is := strings.Cut(line, "="); is && strings.TrimSpace(k) == "MaxArraySize" {
			if limit, err = strconv.Atoi(strings.TrimSpace(v)); err != nil || limit < 1 {
				return 0, fail.Lackf("this Slurm allows no job arrays (MaxArraySize = %s)", strings.TrimSpace(v))
			}
		}
	}
	return limit, nil // indices are below it
}

// sbatch submits and returns the job's number.
func sbatch(ctx context.Context, args []string) (string, error) {
	out, err := command(ctx, "sbatch", args...)
	var said *slurmError
	if errors.As(err, &said) && strings.Contains(said.said, "nvalid partition") {
		names, _ := command(ctx, "sinfo", "-h", "-o", "%R") // a help only
		return "", fail.Usagef("Slurm does not know the partition; there are: %s (%s)", strings.Join(strings.Fields(names), ", "), said.said)
	}
	if err != nil {
		return "", fail.New(max(fail.Code(err), fail.Failed), "the array was not submitted: %w", err)
	}
	job, _, _ := strings.Cut(strings.TrimSpace(out), ";") // JOB or JOB;CLUSTER
	if _, err := strconv.Atoi(job); err != nil {
		return "", fail.Failf("sbatch printed no job number but %q", oneLine(out))
	}
	return job, nil
}

func scancel(ctx context.Context, jobs ...string) error {
	_, err := command(ctx, "scancel", jobs...)
	var said *slurmError
	if errors.As(err, &said) { // they have ended
		return nil
	}
	return err
}

// squeue returns the tasks of jobs that are in the queue, by job and index.
func squeue(ctx context.Context, jobs []string) (map[string]map[int]queueState, error) {
	found := map[string]map[int]queueState{}
	if len(jobs) == 0 {
		return found, nil
	}
	out, err := command(ctx, "squeue", "-h", "-r", "-j", strings.Join(jobs, ","), "-o", "%F|%K|%T|%r")
	var said *slurmError
	if errors.As(err, &said) && strings.Contains(said.said, "nvalid job id") { // forgotten already
		return found, nil
	}
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(out) {
		f := strings.SplitN(strings.TrimSpace(line), "|", 4)
		if len(f) < 4 {
			continue
		}
		k, err := strconv.Atoi(f[1])
		if err != nil {
			continue
		}
		if found[f[0]] == nil {
			found[f[0]] = map[int]queueState{}
		}
		found[f[0]][k] = queueState{f[2], f[3]}
	}
	return found, nil
}

var jobState = regexp.MustCompile(`JobState=(\S+) Reason=(\S+)(?:.* ExitCode=(\S+))?`)

// record returns what Slurm remembers of a task that has ended: state, reason, exit code ("0:9": by signal 9); "" where it has forgotten.
func record(ctx context.Context, job string, k int) (state, reason, exit string) {
	task := fmt.Sprintf("%s_%d", job, k)
	if out, err := command(ctx, "scontrol", "-o", "show", "job", task); err == nil {
		if m := jobState.FindStringSubmatch(out); m != nil {
			return m[1], m[2], m[3]
		}
	}
	if out, err := command(ctx, "sacct", "-n", "-P", "-X", "-j", task, "-o", "State,ExitCode"); err == nil { // not everywhere
		if f := strings.Split(strings.TrimSpace(out), "|"); len(f) >= 2 {
			return f[0], "", f[1]
		}
	}
	return "", "", ""
}

// fate is record in words.
func fate(ctx context.Context, job string, k int) string {
	state, reason, exit := record(ctx, job, k)
	if state == "" {
		return "it is neither in the queue nor remembered, and left no result"
	}
	text := state
	if reason != "" && reason != "None" {
		text += ", " + reason
	}
	if exit != "" {
		text += ", exit code " + exit
	}
	return text
}

// ranNowhere says whether Slurm itself knows that a task left no files, so that nothing need be waited for.
func ranNowhere(ctx context.Context, a *array, k int) bool {
	switch state, _, _ := record(ctx, a.Job, k); state {
	case "CANCELLED", "NODE_FAIL", "BOOT_FAIL", "DEADLINE":
		return true
	}
	return false
}

// Worker runs one task of a point list, as a task of an array does. Its exit code says nothing of the point: the outcome lies in the
// point's directory.
func Worker(ctx context.Context, list string, index int) error {
	data, err := os.ReadFile(list)
	if err != nil {
		return fail.Failf("the point list cannot be read; do all nodes see the directory of the sweep? %w", err)
	}
	var tasks []Task
	if err := json.Unmarshal(data, &tasks); err != nil {
		return fail.Failf("%s: %w", list, err)
	}
	if index < 0 || index >= len(tasks) {
		return fail.Usagef("%s has no point %d", list, index)
	}
	t := tasks[index]
	if t.Threads, _ = strconv.Atoi(os.Getenv("SLURM_CPUS_PER_TASK")); t.Threads < 1 { // not set: one
		t.Threads = 1
	}
	o, err := t.Do(ctx)
	if err == nil && o.State == stopped {
		err = fail.New(fail.Stopped, "stopped")
	}
	return err
}
