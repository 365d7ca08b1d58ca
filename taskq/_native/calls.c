/* The caller's side: submit a job, answer its future, make its handle. */

#include "native.h"

/* Remove a future's callback and context, if it has exactly one; otherwise both stay NULL. -1 with
   an error set. */
static int
take_waiter(State *names, PyObject *future, PyObject **wake, PyObject **context)
{
    PyObject *waiting = PyObject_GetAttr(future, names->_callbacks);
    if (waiting == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return -1;
        PyErr_Clear(); /* another kind of future, of a thread without a loop */
        return 0;
    }
    if (PyList_CheckExact(waiting) && PyList_GET_SIZE(waiting) == 1) {
        PyObject *pair = PyList_GET_ITEM(waiting, 0);
        if (PyTuple_CheckExact(pair) && PyTuple_GET_SIZE(pair) == 2
            && PyContext_CheckExact(PyTuple_GET_ITEM(pair, 1))) {
            *wake = Py_NewRef(PyTuple_GET_ITEM(pair, 0));
            *context = Py_NewRef(PyTuple_GET_ITEM(pair, 1));
        }
    }
    Py_DECREF(waiting);
    if (*wake == NULL) return 0;
    PyObject *removed = PyObject_CallMethodOneArg(future, names->remove_done_callback, *wake);
    Py_XDECREF(removed);
    return removed == NULL ? -1 : 0;
}

/* Run a future's callback, the step of a waiting task, in its context; -1 with an error set. */
static int
step_waiter(PyObject *future, PyObject *wake, PyObject *context)
{
    if (PyContext_Enter(context) < 0) return -1;
    PyObject *stepped = PyObject_CallOneArg(wake, future);
    int left = PyContext_Exit(context);
    int is_done = stepped != NULL && left == 0;
    Py_XDECREF(stepped);
    return is_done ? 0 : -1;
}

/* Answer a future and step its waiting task at once, like ``answer`` in ``log/decide/enqueue.py``.
   -1 with an error set. */
static int
answer(State *names, PyObject *future, PyObject *lsn)
{
    PyObject *wake = NULL, *context = NULL;
    int status = take_waiter(names, future, &wake, &context);
    if (status == 0) {
        PyObject *answered = PyObject_CallMethodOneArg(future, names->set_result, lsn);
        Py_XDECREF(answered);
        status = answered == NULL ? -1 : 0;
    }
    if (status == 0 && wake != NULL) {
        status = step_waiter(future, wake, context);
    }
    Py_XDECREF(wake);
    Py_XDECREF(context);
    return status;
}

/* Answer a future of a run unless it is done; -1 with an error set. */
static int
answer_pair(State *names, PyObject *pair)
{
    if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) {
        PyErr_SetString(PyExc_TypeError, "an answer is (future, value)");
        return -1;
    }
    PyObject *future = PyTuple_GET_ITEM(pair, 0), *value = PyTuple_GET_ITEM(pair, 1);
    PyObject *result = PyObject_CallMethodNoArgs(future, names->done);
    int is_done = result == NULL ? -1 : PyObject_IsTrue(result);
    Py_XDECREF(result);
    if (is_done != 0) return is_done < 0 ? -1 : 0;
    if (PyLong_CheckExact(value)) return answer(names, future, value);
    int is_error = PyExceptionInstance_Check(value); /* else it answers a job with options */
    result = PyObject_CallMethodOneArg(
        future, is_error ? names->set_exception : names->set_result, value);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* answer_all(pairs) -> None

   Answers each (future, lsn, error or other value) of an iterator. If one raises, the rest stays in
   the iterator. */
PyObject *
taskq_answer_all(PyObject *module, PyObject *pairs)
{
    State *names = state_of(module);
    PyObject *pair;

    if (!PyIter_Check(pairs)) {
        PyErr_SetString(PyExc_TypeError, "answer_all() takes an iterator");
        return NULL;
    }
    while ((pair = PyIter_Next(pairs)) != NULL) {
        int status = answer_pair(names, pair);
        Py_DECREF(pair);
        if (status < 0) return NULL;
    }
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

/* -- submit ------------------------------------------------------------------------------------ */

/* The path of a plain job into its port's line; the references are owned. */
typedef struct {
    PyObject *store, *mailbox, *port, *loop;
} Way;

static void
leave(Way *way)
{
    Py_CLEAR(way->store);
    Py_CLEAR(way->mailbox);
    Py_CLEAR(way->port);
    Py_CLEAR(way->loop);
}

/* Read an attribute into ``value``, a new reference. 1: found; 0: missing, in a store or a loop of
   another kind; -1 with an error set. */
static int
get(PyObject *object, PyObject *name, PyObject **value)
{
    *value = PyObject_GetAttr(object, name);
    if (*value == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        return 0;
    }
    return *value == NULL ? -1 : 1;
}

/* Return the truth of an attribute, 0 if it is missing; -1 with an error set. */
static int
is_set(PyObject *object, PyObject *name)
{
    PyObject *value;
    int status = get(object, name, &value);
    if (status == 1) {
        status = PyObject_IsTrue(value);
        Py_DECREF(value);
    }
    return status;
}

/* Find the latest port of this thread, the first step of ``Store.port``. */
static int
find_port(State *names, Way *way, PyObject *thread)
{
    PyObject *latest;
    int status = get(way->store, names->_latest, &latest);
    if (status <= 0) return status;
    if (PyDict_CheckExact(latest)) {
        way->port = Py_XNewRef(PyDict_GetItemWithError(latest, thread));
    }
    Py_DECREF(latest);
    if (way->port == NULL) return PyErr_Occurred() ? -1 : 0;
    return get(way->port, names->loop, &way->loop);
}

/* Find the path of a job. 1: the log is open, and this thread's loop has a port; 0: Python must
   find it; -1 with an error set. */
static int
find_way(State *names, PyObject *connection, Way *way)
{
    int status = get(connection, names->current, &way->store);
    if (status == 1) {
        status = is_set(way->store, names->usable);
    }
    if (status == 1) {
        status = get(way->store, names->mailbox, &way->mailbox);
    }
    if (status == 1) {
        status = is_set(way->mailbox, names->usable);
    }
    if (status != 1) return status;
    PyObject *thread = PyLong_FromUnsignedLong(PyThread_get_thread_ident());
    if (thread == NULL) return -1;
    PyObject *runs_in;
    status = find_port(names, way, thread);
    if (status == 1) {
        status = get(way->loop, names->_thread_id, &runs_in);
    }
    if (status == 1) {
        status = PyObject_RichCompareBool(runs_in, thread, Py_EQ);
        Py_DECREF(runs_in);
    }
    Py_DECREF(thread);
    return status;
}

/* Append a job to the port's line, like ``LoopPort.enqueue``. 1: done; 0: the line is empty, the
   mailbox is full, or the storage thread must be woken; -1 with an error set.

   No Python code runs between the check of the line and the append. So the storage thread takes the
   line either before the check, and leaves it empty, or after the append. */
static int
join_line(State *names, Way *way, Py_ssize_t mailbox_max, PyObject *job)
{
    PyObject *requests = PyObject_GetAttr(way->port, names->_requests);
    PyObject *line = requests == NULL ? NULL : PyObject_GetAttr(way->port, names->_line);
    int is_asleep = line == NULL ? -1 : is_set(way->mailbox, names->asleep);
    if (is_asleep == 1) {
        int is_due = is_set(way->port, names->is_due);
        is_asleep = is_due < 0 ? -1 : !is_due;
    }
    int status = is_asleep < 0 ? -1 : 0;

    if (is_asleep == 0 && PyList_CheckExact(line)) {
        Py_ssize_t waiting = PyObject_Size(requests), size = PyList_GET_SIZE(line);
        if (waiting < 0) {
            status = -1;
        }
        else if (size > 0 && waiting + size / PyTuple_GET_SIZE(job) < mailbox_max) {
            status = PyList_SetSlice(line, size, size, job) < 0 ? -1 : 1;
        }
    }
    Py_XDECREF(requests);
    Py_XDECREF(line);
    return status;
}

/* Make an asyncio future for the loop. */
static PyObject *
new_future(State *names, PyObject *loop)
{
    if (names->future_type == NULL) {
        PyObject *asyncio = PyImport_ImportModule("asyncio");
        if (asyncio == NULL) return NULL;
        names->future_type = PyObject_GetAttrString(asyncio, "Future");
        Py_DECREF(asyncio);
        if (names->future_type == NULL) return NULL;
    }
    return PyObject_Vectorcall(names->future_type, &loop, 0, names->loop_keyword);
}

/* submit(connection, task, spec, mailbox_max, args, kwargs) -> (future, store), or the payload

   Encodes a call and appends the job to its port's line. If that is not possible from here, Python
   continues with the payload. */
PyObject *
taskq_submit(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    State *names = state_of(module);

    if (count != 6 || !PyTuple_CheckExact(args[4]) || !PyDict_CheckExact(args[5])) {
        PyErr_SetString(PyExc_TypeError, "submit() takes six arguments, a tuple and a dict last");
        return NULL;
    }
    Py_ssize_t mailbox_max = PyLong_AsSsize_t(args[3]);
    if (mailbox_max == -1 && PyErr_Occurred()) return NULL;
    PyObject *encode = PyObject_GetAttr(args[1], names->encode);
    if (encode == NULL) return NULL;
    PyObject *body = Py_IS_TYPE(encode, names->encoder_type)
                         ? taskq_encode(encode, args[4], args[5])
                         : PyObject_Vectorcall(encode, args + 4, 2, NULL);
    Py_DECREF(encode);
    if (body == NULL) return NULL;
    Way way = {NULL, NULL, NULL, NULL};
    PyObject *future = NULL, *job = NULL, *sent = NULL;
    int status = find_way(names, args[0], &way);
    if (status == 1) {
        future = new_future(names, way.loop);
        job = future == NULL ? NULL : PyTuple_Pack(3, args[2], body, future);
        sent = job == NULL ? NULL : PyTuple_Pack(2, future, way.store);
        status = sent == NULL ? -1 : join_line(names, &way, mailbox_max, job);
    }
    leave(&way);
    Py_XDECREF(job);
    Py_XDECREF(future);
    if (status == 1) {
        Py_DECREF(body);
        return sent;
    }
    Py_XDECREF(sent);
    if (status < 0) {
        Py_CLEAR(body);
    }
    return body;
}

/* -- new_handle -------------------------------------------------------------------------------- */

/* new_handle(JobHandle, app, task, tag, lsn) -> JobHandle, made without ``__init__`` */
PyObject *
taskq_new_handle(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    State *names = state_of(module);

    if (count != 5 || !PyType_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "new_handle() takes JobHandle and four of its fields");
        return NULL;
    }
    PyTypeObject *type = (PyTypeObject *)args[0];
    PyObject *handle = type->tp_alloc(type, 0);
    if (handle == NULL) return NULL;
    if (set_slot(names, handle, HANDLE_APP, names->_app, args[1]) < 0
        || set_slot(names, handle, HANDLE_TASK, names->_task, args[2]) < 0
        || set_slot(names, handle, HANDLE_TAG, names->_tag, args[3]) < 0
        || set_slot(names, handle, HANDLE_LSN, names->lsn, args[4]) < 0
        || set_slot(names, handle, HANDLE_DUPLICATE, names->duplicate, Py_False) < 0) {
        Py_DECREF(handle);
        return NULL;
    }
    return handle;
}
