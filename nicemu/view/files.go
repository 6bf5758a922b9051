package view

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
)

// Files is a tree on disk that follows what it is told. A reader sees the old text of a file or the new one; files stay
// the same files, so that one that is open goes on to be read.
type Files struct {
	root *os.Root
	last map[string]string
}

// OpenFiles begins to write below a directory that exists.
func OpenFiles(dir string) (*Files, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &Files{root: root, last: map[string]string{}}, nil
}

// Close ends it. The files stay.
func (f *Files) Close() error { return f.root.Close() }

// Update makes the tree what it shall be: only what differs from the last time is touched.
func (f *Files) Update(tree map[string]string) error {
	for name, text := range tree {
		if last, there := f.last[name]; there && last == text {
			continue
		}
		if err := f.put(name, text); err != nil {
			return fmt.Errorf("cannot write %s of the view: %w", name, err)
		}
		f.last[name] = text
	}
	for name := range f.last {
		if _, keep := tree[name]; keep {
			continue
		}
		if err := f.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		delete(f.last, name)
	}
	return nil
}

// put writes in place. Counters grow, so a text hardly ever gets shorter; when it does, the rest is cut off afterwards.
func (f *Files) put(name, text string) error {
	w, err := f.root.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o644)
	if errors.Is(err, fs.ErrNotExist) {
		if err = f.root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		w, err = f.root.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o644)
	}
	if err != nil {
		return err
	}
	_, err = w.WriteAt([]byte(text), 0)
	if st, e := w.Stat(); err == nil && (e != nil || st.Size() != int64(len(text))) {
		err = w.Truncate(int64(len(text)))
	}
	return errors.Join(err, w.Close())
}
