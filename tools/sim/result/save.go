package result

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Files of a saved result.
const (
	ResultFile  = "result.json"
	FlowsFile   = "flows.csv"
	LinksFile   = "links.csv"
	LineFile    = "line.csv"
	GroupsFile  = "groups.csv"
	SummaryFile = "summary.csv"
	ReportFile  = "report.html"
	PlotsDir    = "plots"
)

// SaveOptions of Save.
type SaveOptions struct {
	Force bool // replace a result that is there
	PNG   bool // plots as PNG beside SVG
}

// CheckDir says whether Save may write dir: it is not there, or empty, or, with force, a result that Save wrote and nothing else.
func CheckDir(dir string, force bool) error {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Lstat(dir); err == nil {
			return fmt.Errorf("%s is a link to nothing; take another name", dir)
		}
		return nil
	case err != nil:
		return fmt.Errorf("%w; take another name", err)
	case len(entries) == 0:
		return nil
	}
	if what := foreign(dir, entries); what != "" {
		return fmt.Errorf("%s holds %s, which is no part of a result, and is left alone; take another name", dir, what)
	}
	if !force {
		return fmt.Errorf("%s holds a result; --force replaces it", dir)
	}
	return nil
}

// foreign names something in dir that Save did not write, "" when there is nothing.
func foreign(dir string, entries []fs.DirEntry) string {
	ours := []string{ResultFile, FlowsFile, LinksFile, LineFile, GroupsFile, SummaryFile, ReportFile}
	for _, e := range entries {
		switch {
		case e.Name() == PlotsDir && e.IsDir():
			plots, err := os.ReadDir(filepath.Join(dir, PlotsDir))
			if err != nil {
				return PlotsDir
			}
			for _, p := range plots {
				if x := filepath.Ext(p.Name()); !p.Type().IsRegular() || x != ".svg" && x != ".png" {
					return filepath.Join(PlotsDir, p.Name())
				}
			}
		case !slices.Contains(ours, e.Name()) || !e.Type().IsRegular():
			return e.Name()
		}
	}
	f, err := os.Open(filepath.Join(dir, ResultFile))
	if err != nil {
		return "no " + ResultFile + " but " + entries[0].Name()
	}
	defer f.Close()
	if _, err := ReadJSON(f); err != nil {
		return "a " + ResultFile + " that is " + err.Error()
	}
	return ""
}

// Save writes the result as files into dir: under another name first, so that dir is never there in part. What may be in the
// way is told by CheckDir.
func Save(dir string, r *Result, o SaveOptions) error {
	dir = filepath.Clean(dir)
	if err := CheckDir(dir, o.Force); err != nil {
		return err
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil { // a link to an earlier result stays one
		dir = real
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+".unfinished-")
	if err != nil {
		return err
	}
	if err := r.saveFiles(work, o); err != nil {
		os.RemoveAll(work)
		return err
	}
	return install(work, dir)
}

// install gives a whole directory its name. The one that is there, an earlier result, is exchanged with it and removed.
func install(work, dir string) error {
	err := unix.Renameat2(unix.AT_FDCWD, work, unix.AT_FDCWD, dir, unix.RENAME_NOREPLACE)
	if err == nil {
		return nil
	}
	if errors.Is(err, unix.EEXIST) {
		if err = unix.Renameat2(unix.AT_FDCWD, work, unix.AT_FDCWD, dir, unix.RENAME_EXCHANGE); err == nil {
			return os.RemoveAll(work) // the earlier one has this name now
		}
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // file systems such as NFS have neither of the two
		if err = os.RemoveAll(dir); err == nil {
			err = os.Rename(work, dir)
		}
	}
	if err != nil {
		return fmt.Errorf("%w; the whole result is in %s", err, work)
	}
	return nil
}

func (r *Result) saveFiles(dir string, o SaveOptions) error {
	figures, err := r.Figures()
	if err != nil {
		return err
	}
	type file struct {
		name  string
		write func(io.Writer) error
	}
	files := []file{{ResultFile, r.WriteJSON}, {FlowsFile, r.WriteFlowsCSV}, {LinksFile, r.WriteLinksCSV}, {LineFile, r.WriteLineCSV},
		{GroupsFile, r.WriteGroupsCSV}, {SummaryFile, r.WriteSummaryCSV},
		{ReportFile, func(w io.Writer) error { return r.writeHTML(w, figures) }}}
	for i := range figures {
		f := &figures[i]
		files = append(files, file{filepath.Join(PlotsDir, f.Name+".svg"), f.WriteSVG})
		if o.PNG {
			files = append(files, file{filepath.Join(PlotsDir, f.Name+".png"), f.WritePNG})
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, PlotsDir), 0o755), os.Chmod(dir, 0o755)); err != nil {
		return err
	}
	for _, f := range files {
		if err := writeFile(filepath.Join(dir, f.name), f.write); err != nil {
			return err
		}
	}
	return nil
}

func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
