# The R kernel of one context: R --no-echo --no-restore --file=r.R --args DIR
#
# Each line of DIR/requests is a number and what to do with the content of
# DIR/code; JSON lines in DIR/events say what came of it. Output of code goes to
# the standard outputs as it is printed, which is why this is not IRkernel:
# that one holds the output of an expression back until the expression is done.
#
# All names live in an environment of their own: the user's is globalenv().
local({
  dir <- commandArgs(trailingOnly = TRUE)[[1]]
  file_in <- function(name) file.path(dir, name)

  # The packages for JSON, and those that show values as HTML and the like, are
  # loaded only when something is to be shown. JSON already passes as it is.
  json <- function(value, unbox = TRUE) {
    jsonlite::toJSON(exact(value, unbox), auto_unbox = unbox, null = "null", na = "null", dataframe = "columns",
      digits = NA, json_verbatim = TRUE)
  }
  # jsonlite writes 15 digits of a number. exact writes as many as it takes to
  # read the same number back.
  exact <- function(value, unbox) {
    if (is.data.frame(value) || is.list(value) && !is.object(value)) lapply(value, exact, unbox)
    else if (is.double(value) && !is.object(value) && is.null(dim(value)) && is.null(names(value))) numbers(value, unbox)
    else value
  }
  numbers <- function(value, unbox) {
    text <- sprintf("%.15g", value)
    for (digits in c("%.16g", "%.17g")) {
      lossy <- is.finite(value)
      lossy[lossy] <- as.numeric(text[lossy]) != value[lossy]
      text[lossy] <- sprintf(digits, value[lossy])
    }
    text[!is.finite(value)] <- "null"
    if (!unbox || length(text) != 1) text <- paste0("[", paste(text, collapse = ","), "]")
    structure(text, class = "json")
  }
  emit <- function(event) {
    con <- file(file_in("events"), "ab", raw = TRUE)
    on.exit(close(con))
    writeLines(enc2utf8(as.character(json(event))), con, useBytes = TRUE)
  }
  done <- function(id, status = 0) {
    con <- file(file_in("events"), "ab", raw = TRUE)
    on.exit(close(con))
    writeLines(sprintf('{"type":"done","id":%d,"status":%d}', id, status), con)
  }

  ## Results

  show <- function(data, main = FALSE) {
    data <- Filter(Negate(is.null), data)
    data <- lapply(data, function(v) if (is.raw(v)) base64enc::base64encode(v) else v)
    if (length(data) > 0) suspendInterrupts(emit(list(type = "result", main = main, data = data)))
  }
  # describe is a value in every form that clients know.
  describe <- function(value) {
    forms <- c("text/plain", "text/html", "text/markdown", "text/latex")
    # A value without a text is an error of its class; other forms are extras.
    text <- suppressWarnings(repr::mime2repr[[forms[[1]]]](value))
    data <- c(list(text), lapply(repr::mime2repr[forms[-1]], function(form) {
      tryCatch(suppressWarnings(form(value)), error = function(e) NULL)
    }))
    names(data) <- forms
    if (is.data.frame(value)) {
      data[["e2b/data"]] <- tryCatch(json(value, FALSE), error = function(e) NULL)
    }
    data
  }
  # Values that draw themselves when they are printed.
  drawn <- c("ggplot", "trellis", "recordedplot", "grob", "gtable")
  present <- function(value, main) {
    if (inherits(value, drawn)) print(value) else show(describe(value), main)
  }

  ## Pictures: a device that is opened when something is drawn and closed when
  ## the code is done, one file a page

  device <- NULL
  open_device <- function(...) {
    grDevices::png(file_in("page%04d.png"), width = 7, height = 7, units = "in", res = 120, type = "cairo")
    device <<- grDevices::dev.cur()
  }
  show_pages <- function() {
    if (is.null(device)) return()
    if (device %in% grDevices::dev.list()) grDevices::dev.off(device)
    device <<- NULL
    for (page in sort(list.files(dir, "^page.*png$", full.names = TRUE))) {
      show(list("image/png" = readBin(page, "raw", file.size(page))))
      unlink(page)
    }
  }

  ## Running code

  # The user's calls stand between our evaluation and R's own handlers.
  evaluation <- quote(eval(exprs[[i]], globalenv()))
  calls_of <- function(calls) {
    from <- Position(function(call) identical(call, evaluation), calls, right = TRUE, nomatch = 0)
    calls <- calls[seq_along(calls) > from]
    calls <- Filter(function(call) is.name(call[[1]]) && !as.character(call[[1]]) %in% c("h", ".handleSimpleError"), calls)
    vapply(calls, function(call) deparse(call, nlines = 1L)[[1]], "")
  }
  message_of <- function(e) {
    tryCatch(paste(as.character(conditionMessage(e)), collapse = "\n"), error = function(e) "")
  }
  fail <- function(name, value, call = NULL, calls = character()) {
    head <- if (is.null(call)) paste0("Error: ", value)
    else paste0("Error in ", deparse(call, nlines = 1L)[[1]], ": ", value)
    if (length(calls) > 0) head <- paste(c(head, "Traceback:", sprintf("%d. %s", seq_along(calls), calls)), collapse = "\n")
    suspendInterrupts(emit(list(type = "error", name = name, value = value, traceback = head)))
  }
  run <- function(exprs) {
    for (i in seq_along(exprs)) {
      value <- withVisible(eval(exprs[[i]], globalenv()))
      if (value$visible) present(value$value, i == length(exprs))
    }
    0
  }
  execute <- function() {
    code <- readChar(file_in("code"), file.size(file_in("code")), useBytes = TRUE)
    Encoding(code) <- "UTF-8"
    calls <- character()
    status <- tryCatch(
      {
        exprs <- tryCatch(parse(text = code, keep.source = TRUE), error = function(e) {
          fail("ParseError", sub("^<text>:", "", message_of(e)))
          NULL
        })
        # R itself would end with an error that no handler takes, such as a warning
        # that is raised as one.
        withRestarts(
          withCallingHandlers(run(exprs), error = function(e) calls <<- calls_of(sys.calls())),
          abort = function() {
            fail("Error", sub("^Error[^\n]*: *\n? *", "", sub("\n$", "", geterrmessage())))
            0
          }
        )
      },
      cay_quit = function(e) e$status,
      interrupt = function(e) {
        fail("Interrupted", "the execution was interrupted")
        0
      },
      error = function(e) {
        name <- class(e)[[1]]
        own <- conditionCall(e)
        if (identical(own, evaluation)) own <- NULL
        fail(if (name == "simpleError") "Error" else name, message_of(e), own, calls)
        0
      }
    )
    tryCatch(show_pages(), error = function(e) fail(class(e)[[1]], message_of(e)), interrupt = function(e) NULL)
    flush(stdout())
    status
  }

  ## The environment

  undo <- list()
  set <- function(name, value) {
    if (is.null(value) || is.na(value)) Sys.unsetenv(name)
    else do.call(Sys.setenv, stats::setNames(list(value), name))
  }
  prepare <- function() {
    bytes <- readBin(file_in("code"), "raw", file.size(file_in("code")))
    ends <- which(bytes == 0)
    if (length(ends) == 0) return()
    fields <- mapply(function(from, to) rawToChar(bytes[seq_len(to - from) + from - 1L]), c(1L, ends[-length(ends)] + 1L), ends)
    for (i in seq(1, length(fields), 3)) {
      name <- fields[[i + 1]]
      value <- fields[[i + 2]]
      tryCatch(switch(fields[[i]],
        set = set(name, value),
        unset = set(name, NULL),
        call = {
          undo[[length(undo) + 1]] <<- list(name, Sys.getenv(name, NA))
          set(name, value)
        },
        entropy = set.seed(strtoi(substr(value, 1, 7), 16L))
      ), error = function(e) NULL) # a name or value that no environment can hold
    }
  }
  restore <- function() {
    for (was in rev(undo)) set(was[[1]], was[[2]])
    undo <<- list()
  }

  ## Functions that code finds changed

  leave <- function(save = "no", status = 0, runLast = FALSE) {
    stop(structure(class = c("cay_quit", "condition"), list(message = "quit", call = NULL, status = status)))
  }
  attach(list(quit = leave, q = leave), name = "cay", warn.conflicts = FALSE)
  options(
    device = open_device, warn = 1, crayon.enabled = FALSE, cli.num_colors = 1L, width = 120,
    repos = c(CRAN = "https://cloud.r-project.org"),
    jupyter.in_kernel = TRUE, # IRdisplay's functions
    jupyter.base_display_func = function(data, metadata = NULL) show(data)
  )

  ## Requests, one after the other

  take <- function() {
    repeat {
      con <- fifo(file_in("requests"), "rt", blocking = TRUE)
      line <- tryCatch(readLines(con, 1), finally = close(con))
      if (length(line) == 1) return(strsplit(line, " ", fixed = TRUE)[[1]])
    }
  }
  ## An interrupt for code that was done already waits in R until a call looks
  ## for it, which must not be the next execution. All that were sent for earlier
  ## requests have arrived when one is read.
  forget <- function() tryCatch(allowInterrupts(Sys.sleep(0)), interrupt = function(e) NULL)
  suspendInterrupts({
    invisible(loadNamespace("jsonlite"))
    done(0L)
    repeat {
      request <- take()
      forget()
      status <- tryCatch(
        allowInterrupts(switch(request[[2]], execute = execute(), prepare = prepare(), restore = restore())),
        interrupt = function(e) 0,
        error = function(e) 0
      )
      done(as.integer(request[[1]]), if (is.numeric(status)) as.integer(status) else 0L)
    }
  })
})
