// Command plain is what the agent is measured against: the least HTTP server
// in Go that moves files and output, run inside a sandbox beside the agent.
package main

import (
	"cmp"
	"errors"
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
)

func main() {
	http.HandleFunc("GET /file", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, r.FormValue("path"))
	})
	http.HandleFunc("PUT /file", func(w http.ResponseWriter, r *http.Request) {
		answer(w, store(r.URL.Query().Get("path"), r.Body))
	})
	http.HandleFunc("GET /output", func(w http.ResponseWriter, r *http.Request) {
		if err := output(w, r.FormValue("script")); err != nil {
			panic(http.ErrAbortHandler) // the answer has begun
		}
	})
	log.Fatal(http.ListenAndServe(":"+cmp.Or(os.Getenv("PORT"), "8000"), nil))
}

func store(path string, content io.Reader) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}

// output pipes what a script writes into an answer, as it is.
func output(w io.Writer, script string) error {
	cmd := exec.Command("/bin/sh", "-c", script)
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	_, err = io.Copy(w, pipe)
	return errors.Join(err, cmd.Wait())
}

func answer(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
