package egress

import (
	"bufio"
	"encoding/json"
	"net/http"

	"github.com/cay-run/cay"
	guestside "github.com/cay-run/cay/internal/guest"
)

// maxAsk bounds a question of a program inside, as JSON.
const maxAsk = 128 << 10

// serveInside serves a connection to what the host offers programs inside.
func (w *web) serveInside(f *flow) {
	w.arrive(&visit{Conn: f.conn, r: bufio.NewReaderSize(f.conn, peekSize), flow: f, inside: true})
}

// answerInside has a question of a program inside answered. The guest's address
// says which sandbox it is; the words are the guest's.
func (w *web) answerInside(rw http.ResponseWriter, r *http.Request, v *visit) {
	refuse := func(status int, text string) {
		v.flow.refused("http", "", text)
		http.Error(rw, text, status)
	}
	if r.URL.Path != guestside.AskPath {
		refuse(http.StatusNotFound, "there is no such route: POST "+guestside.AskPath+" asks a person")
		return
	}
	if r.Method != http.MethodPost {
		refuse(http.StatusMethodNotAllowed, "POST asks a person")
		return
	}
	var q guestside.Ask
	if err := json.NewDecoder(http.MaxBytesReader(rw, r.Body, maxAsk)).Decode(&q); err != nil {
		refuse(http.StatusBadRequest, "the body is no question in JSON, or is too large")
		return
	}
	if q.Subject == "" || q.Title == "" || len(q.Subject) > maxRequestLine || len(q.Title) > guestside.MaxAskTitle || len(q.Body) > guestside.MaxAskBody {
		refuse(http.StatusBadRequest, "subject and title are required, and with body they have bounds: 500 and 200 bytes, and 16 KiB")
		return
	}
	v.flow.allowed("http", "", verdict{rule: "a question for a person"})
	got := w.p.ask(r.Context(), v.flow.guest, Question{
		Kind: cay.ToolApproval, Subject: cay.Fit(q.Subject, maxRequestLine), Title: cay.Fit(q.Title, guestside.MaxAskTitle), Body: cay.Legible(q.Body, guestside.MaxAskBody),
	})
	rw.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(rw).Encode(guestside.Answer{Yes: got.Yes, Why: got.Why}) // the guest may be gone
}
