package sweep

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"go.yaml.in/yaml/v3"
)

// writeFile replaces a file at once: a reader sees the old one or the new one, also after a crash.
func writeFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // nothing is there after the rename
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = f.Chmod(0o644)
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	return err
}

func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err
	}
	return writeFile(path, append(data, '\n'))
}

func readJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// inputDigest names the bytes of a plan and of the files that it reads (file: of a part of the workload, and what overrides name),
// which are relative to dir.
func inputDigest(text []byte, dir string, more []string) string {
	h := sha256.New()
	sum := sha256.Sum256(text)
	h.Write(sum[:])
	var doc yaml.Node
	if yaml.Unmarshal(text, &doc) == nil { // what is wrong with it, the run says
		for _, f := range append(filesOf(&doc), more...) {
			if !filepath.IsAbs(f) {
				f = filepath.Join(dir, f)
			}
			data, err := os.ReadFile(f)
			sum := sha256.Sum256(data)
			fmt.Fprintf(h, "file %t %x\n", err == nil, sum)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

func filesOf(n *yaml.Node) (files []string) {
	for i, c := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 && c.Value == "file" && n.Content[i+1].Kind == yaml.ScalarNode {
			files = append(files, n.Content[i+1].Value)
		}
		files = append(files, filesOf(c)...)
	}
	slices.Sort(files)
	return slices.Compact(files)
}
