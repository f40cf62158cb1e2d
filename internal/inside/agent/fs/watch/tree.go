package watch

import "strings"

// tree maps watch descriptors to directories, relative to the root ("" is the
// root), and back.
type tree struct {
	paths map[int32]string
	wds   map[string]int32
}

func newTree() tree {
	return tree{paths: map[int32]string{}, wds: map[string]int32{}}
}

func (t *tree) len() int { return len(t.paths) }

func (t *tree) path(wd int32) (string, bool) {
	p, ok := t.paths[wd]
	return p, ok
}

func (t *tree) set(wd int32, path string) {
	if old, ok := t.paths[wd]; ok && t.wds[old] == wd {
		delete(t.wds, old)
	}
	t.paths[wd] = path
	t.wds[path] = wd
}

func (t *tree) forget(wd int32) {
	if p, ok := t.paths[wd]; ok && t.wds[p] == wd {
		delete(t.wds, p)
	}
	delete(t.paths, wd)
}

// below lists the descriptors of path and of what is below it.
func (t *tree) below(path string) []int32 {
	var wds []int32
	for wd, p := range t.paths {
		if p == path || strings.HasPrefix(p, path+"/") {
			wds = append(wds, wd)
		}
	}
	return wds
}

// drop forgets path and what is below it and returns their descriptors.
func (t *tree) drop(path string) []int32 {
	wds := t.below(path)
	for _, wd := range wds {
		t.forget(wd)
	}
	return wds
}

// rebase renames path and what is below it.
func (t *tree) rebase(from, to string) {
	for _, wd := range t.below(from) {
		t.set(wd, to+strings.TrimPrefix(t.paths[wd], from))
	}
}
