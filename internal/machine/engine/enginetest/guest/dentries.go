package main

import (
	"errors"
	"fmt"
	"hash/crc32"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
)

// woken counts the engine's notices that memory may get short.
var woken atomic.Int64

// onSignal does a thing each time that a signal comes.
func onSignal(which os.Signal, do func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, which)
	go func() {
		for range c {
			do()
		}
	}()
}

// sum is that of all that eat has eaten.
func sum(*http.Request) (string, error) {
	h := crc32.NewIEEE()
	for _, block := range ballast {
		_, _ = h.Write(block)
	}
	return strconv.Itoa(int(h.Sum32())), nil
}

const (
	churnDirs  = 24
	churnFiles = 125 // more in all than an engine may keep in mind
)

// churn makes, looks up, renames and removes many files, a few callers at once,
// and finds what must be there then.
func churn(r *http.Request) (string, error) {
	root := r.FormValue("path")
	var all sync.WaitGroup
	errs := make([]error, churnDirs)
	for i := range churnDirs {
		all.Go(func() { errs[i] = churnOne(root, i) })
	}
	all.Wait()
	return "", errors.Join(errs...)
}

func churnOne(root string, n int) error {
	dir := filepath.Join(root, strconv.Itoa(n))
	file := func(i int) string { return filepath.Join(dir, "deep", strconv.Itoa(i)) }
	if err := os.MkdirAll(filepath.Dir(file(0)), 0o755); err != nil {
		return err
	}
	for i := range churnFiles {
		if err := os.WriteFile(file(i), []byte(file(i)), 0o644); err != nil {
			return err
		}
	}
	var errs []error
	for i := range churnFiles {
		_, err := os.Lstat(file(i))
		errs = append(errs, err)
		switch i % 5 {
		case 1: // onto one that is there and was looked up
			errs = append(errs, os.Rename(file(i), file(i-1)))
		case 2:
			errs = append(errs, os.Remove(file(i)))
		case 3: // removed and made again
			errs = append(errs, os.Remove(file(i)), os.Mkdir(file(i), 0o755))
		case 4:
			errs = append(errs, os.Remove(file(i-1)), os.Rename(file(i), file(i-1)))
		}
	}
	// The directory itself goes elsewhere, with all that is known below it, and
	// an empty one takes its place.
	errs = append(errs, os.Rename(dir, dir+"-moved"), os.Mkdir(dir, 0o755))
	return errors.Join(append(errs, churned(root, n))...)
}

// churned compares one directory with what churn leaves.
func churned(root string, n int) error {
	dir := filepath.Join(root, strconv.Itoa(n))
	var errs []error
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		errs = append(errs, fmt.Errorf("%s: %d entries, %v", dir, len(left), err))
	}
	for i := range churnFiles {
		want := ""
		switch i % 5 {
		case 0, 3: // what the next one was
			want = filepath.Join(dir, "deep", strconv.Itoa(i+1))
		}
		path := filepath.Join(dir+"-moved", "deep", strconv.Itoa(i))
		text, err := os.ReadFile(path)
		if string(text) != want || (want == "") != errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("%s holds %q, %v, want %q", path, text, err, want))
		}
		if _, err := os.Lstat(filepath.Join(dir, "deep", strconv.Itoa(i))); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("%s is where it was: %v", path, err))
		}
	}
	return errors.Join(errs...)
}

// left compares all directories with what churn leaves.
func left(r *http.Request) (string, error) {
	var errs []error
	for i := range churnDirs {
		errs = append(errs, churned(r.FormValue("path"), i))
	}
	return "", errors.Join(errs...)
}
